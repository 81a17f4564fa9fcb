"""When compaction runs: a look after each interval, if something changed since the last one. In the
background, one thing at a time.

    on_change ──► dirty ──(interval since the last look, with jitter)──► a round of sets, a round of streams
        ──► quiet until a change,
                                                                         until an object gets old, or may be
                                                                         tried again

    on_full ──► a round of reclaim at once, then after changes while the store is full, RECLAIM_INTERVAL_MS
    apart at least

Rounds: sets.py, streams.py, reclaim.py. A compaction that is refused, not answered or finds its ids run out
is thrown away whole and tried again an interval later, then later and later: nothing was changed, and what
was put is deleted when its ids run out. A stop in the middle leaves the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from millrace.runtime.errors import Exhausted, Fenced, Unavailable
from millrace.runtime.objectstore import ObjectMissing, StoreDenied
from millrace.runtime.rand import Rand
from millrace.s3stream.compaction.config import CompactionSettings
from millrace.s3stream.compaction.reclaim import Reclaimer
from millrace.s3stream.compaction.sets import SetCompactor
from millrace.s3stream.compaction.streams import StreamCompactor
from millrace.s3stream.compaction.work import Work
from millrace.s3stream.errors import CompactionRefused, UploadExpired
from millrace.s3stream.objects.placing import ObjectForeign, pass_over

log = logging.getLogger(__name__)
# Between two looks at least, whatever the settings.
PAUSE_S_MIN = 0.2
JITTER_PART = 0.1
RECLAIM_INTERVAL_MS = 5_000
# Pauses after rounds that came to nothing, in intervals: 1, 2, 4 and so on up to this.
PUT_OFF_FACTOR_MAX = 16
# A timer may come so much early, by the clock's grain.
EARLY_S = 0.001
# Why a round ends early, by what compaction's counts call it.
ENDINGS: tuple[tuple[type[Exception], str], ...] = (
    (CompactionRefused, "refused"),
    (UploadExpired, "expired"),
    (ObjectMissing, "store"),
    (Unavailable, "store"),
    (Exhausted, "store"),
    (StoreDenied, "store"),
)


class Rhythm:
    """When a kind of round is due. Times are the loop's, in seconds."""

    def __init__(self, interval_ms: int, rand: Rand, now_s: float) -> None:
        self._pause_s = max(PAUSE_S_MIN, interval_ms / 1000)
        self._rand = rand
        self.is_dirty = True
        self.looked_at_s = now_s
        self._failures_count = 0
        # Not all brokers that start together at once.
        self.next_at_s = now_s + max(PAUSE_S_MIN, self._pause_s * rand.fraction())

    def begin(self, now_s: float) -> bool:
        """Whether a round is due; it is then begun."""
        if not self.is_dirty or now_s < self.next_at_s - EARLY_S:
            return False
        self.is_dirty = False
        self.looked_at_s = now_s
        self.next_at_s = now_s + self._pause_s * (1 + JITTER_PART * (2 * self._rand.fraction() - 1))
        return True

    def end(self, *, is_done: bool) -> None:
        """A round that came to nothing is tried again without a change, later and later: its work may have
        been large."""
        if is_done:
            self._failures_count = 0
            return
        self.is_dirty = True
        self.next_at_s += self._pause_s * (min(2**self._failures_count, PUT_OFF_FACTOR_MAX) - 1)
        self._failures_count += 1

    def wakes_at_s(self, due_s: float | None) -> float | None:
        """`due_s`: when there will be something to do though nothing changes."""
        if self.is_dirty:
            return self.next_at_s
        return None if due_s is None else max(due_s, self.next_at_s)


class Rhythms:
    def __init__(self, settings: CompactionSettings, rand: Rand, now_s: float, begin_at_s: float) -> None:
        self.sets = Rhythm(settings.set_interval_ms, rand.split("sets"), begin_at_s)
        self.streams = Rhythm(settings.stream_interval_ms, rand.split("streams"), begin_at_s)
        self.reclaim = Rhythm(RECLAIM_INTERVAL_MS, rand.split("reclaim"), now_s)
        self.reclaim.next_at_s = now_s

    def on_change(self) -> None:
        self.sets.is_dirty = self.streams.is_dirty = self.reclaim.is_dirty = True

    def wait_for_change(self, *, is_full: bool) -> bool:
        """Whether a change makes another round due than those that are."""
        return not (self.sets.is_dirty and self.streams.is_dirty and (self.reclaim.is_dirty or not is_full))


class Compactor:
    def __init__(self, work: Work, rand: Rand, is_full: Callable[[], bool], begin_at_s: float = 0.0) -> None:
        """`is_full`: whether uploads wait because the store is full; `on_full` tells when they begin to.
        `begin_at_s`: by the loop's clock, from when on the other rounds may be."""
        self._work = work
        self._rand = rand
        self._is_full = is_full
        self._begin_at_s = begin_at_s
        self._sets = SetCompactor(work)
        self._streams = StreamCompactor(work)
        self._reclaimer = Reclaimer(work)
        self._has_changed = False
        self._is_waiting_for_change = False
        self._wake = asyncio.Event()

    @property
    def quarantined_count(self) -> int:
        return len(self._work.quarantined)

    def on_change(self) -> None:
        """Objects, or the bounds of streams, are not what they were."""
        self._has_changed = True
        if self._is_waiting_for_change:
            self._wake.set()

    def on_full(self) -> None:
        """An upload was refused for want of room, and waits."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled, or until a newer owner has taken the node: raises Fenced."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        rhythms = Rhythms(self._work.settings, self._rand, now_s, max(now_s, self._begin_at_s))
        try:
            while True:
                await self._wait(rhythms)
                if self._is_full() and rhythms.reclaim.begin(loop.time()):
                    rhythms.reclaim.end(is_done=await self._guarded(self._reclaimer.round))
                if rhythms.sets.begin(loop.time()):
                    rhythms.sets.end(is_done=await self._guarded(self._sets.round))
                if rhythms.streams.begin(loop.time()):
                    rhythms.streams.end(is_done=await self._guarded(self._streams.round))
        except Fenced as error:
            log.warning("compaction ends: %s", error)
            raise

    async def _wait(self, rhythms: Rhythms) -> None:
        """Until a round is due."""
        loop, sets, streams = asyncio.get_running_loop(), rhythms.sets, rhythms.streams
        while True:
            self._wake.clear()
            if self._has_changed:
                self._has_changed = False
                rhythms.on_change()
            next_try_s, is_full = self._work.quarantined.next_try_s, self._is_full()
            wakes = [
                sets.wakes_at_s(self._next_split_s(next_try_s(sets.looked_at_s))),
                streams.wakes_at_s(next_try_s(streams.looked_at_s)),
                rhythms.reclaim.wakes_at_s(None) if is_full else None,
            ]
            wake_s = min((at_s for at_s in wakes if at_s is not None), default=None)
            if wake_s is not None and wake_s <= loop.time() + EARLY_S:
                # What became due by itself is as good as a change.
                sets.is_dirty |= wakes[0] == wake_s
                streams.is_dirty |= wakes[1] == wake_s
                return
            self._is_waiting_for_change = rhythms.wait_for_change(is_full=is_full)
            await self._sleep_until(wake_s)

    async def _sleep_until(self, wake_s: float | None) -> None:
        try:
            async with asyncio.timeout_at(wake_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        finally:
            self._is_waiting_for_change = False

    def _next_split_s(self, again_s: float | None) -> float | None:
        """When an object gets old enough to be split, or one that is quarantined may be tried."""
        due_ms = self._sets.next_due_ms()
        if due_ms is None:
            return again_s
        left_s = max(0, due_ms - self._work.clock.wall_ms()) / 1000
        due_s = asyncio.get_running_loop().time() + left_s
        return due_s if again_s is None else min(due_s, again_s)

    async def _owned(self, round_of: Callable[[], Awaitable[bool]]) -> bool:
        """An id under which a replaced owner was quicker ends the round as one that expired does."""
        try:
            return await round_of()
        except ObjectForeign as error:
            await pass_over(self._work.ownership, error)
            raise CompactionRefused(f"{error.key} is taken") from None

    async def _guarded(self, round_of: Callable[[], Awaitable[bool]]) -> bool:
        """Whether the round came to its end, with nothing left out."""
        try:
            return await self._owned(round_of)
        except tuple(kind for kind, _ in ENDINGS) as error:
            reason = next(name for kind, name in ENDINGS if isinstance(error, kind))
            self._work.counts.skip(reason)
            log.info("compaction is put off: %s: %s", type(error).__name__, error)
            return False
