"""The wall clock as far as it is known to be right: what a node reads, keeps and is told of the time.

    <log.dirs>/newest-time         the newest known time, written at a start, every `SAVE_MS`, and when it
                                   falls
    <log.dirs>/confirmed-time      an operator's word (`millrace clock --confirm`), taken once and removed
    metadata                       its newest batch, and when the newest object's data was, where newest-time
                                   is missing: a first start of this version, a log directory that was built
                                   anew; of a new member of a cluster, or one that has lost its log directory,
                                   what it has fetched when it has all that is committed
    the store's Date               of the newest answer; a HEAD fetches one while the clock is doubted

A `KnownTime` is the node's Clock: what it writes for clients is stamped by it. `judged` is the Clock by which
it deletes: records, groups' offsets, objects. `believed` is the Clock by which it stamps metadata: others
learn the time from there, so a wall clock that is doubted, ahead or behind, is not seen in it. While the wall
clock is doubted, `judged` goes on at the monotonic clock's pace from the newest known time, so what is
certainly too old still goes, and nothing else. Segments are no source: metadata is written whenever one of
theirs is uploaded, and their own times are producers'.

Not here: what is believed (wall_watch.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from millrace.broker.identity.known_time_text import decode_time, encode_time, shown
from millrace.broker.identity.wall_watch import JUMP_MAX_MS, WallWatch
from millrace.kraft.tables.objects import ObjectState
from millrace.runtime.clock import Clock
from millrace.runtime.disk import Disk, DiskFailed, DiskFull
from millrace.runtime.errors import MillraceError, in_words
from millrace.runtime.objectstore import StoreDate

if TYPE_CHECKING:
    from millrace.broker.config import BrokerSettings
    from millrace.kraft.image.image import MetadataImage
    from millrace.kraft.node import ControllerNode
    from millrace.runtime.bundle import Runtime
    from millrace.runtime.metrics import Registry

log = logging.getLogger(__name__)
NEWEST, CONFIRMED = "newest-time", "confirmed-time"
LOOK_EVERY_S = 5.0
SAVE_MS = 600_000
SAY_AGAIN_MS = 3_600_000

AskStore = Callable[[], Awaitable[object]]


class TimeView:
    """A Clock whose wall time is one that the node knows."""

    def __init__(self, known: KnownTime, wall_ms: Callable[[], int]) -> None:
        self._known = known
        self._wall_ms = wall_ms

    def wall_ms(self) -> int:
        return self._wall_ms()

    def asleep_ms(self) -> int:
        return self._known.asleep_ms()

    def elapsed_ms(self) -> int:
        return self._known.elapsed_ms()


class KnownTime:
    """A Clock.

        known = KnownTime(...)                      the wall clock
        await known.open(newest_of(node))           recovered, and not yet started: where a time is kept here,
                                                    or told by the metadata that is here, it is known
        await known.settle(newest_of(node))         the node has all that is committed: else by that

    Until it is known it is the wall clock in all ways, and nothing may be deleted by it."""

    def __init__(
        self,
        clock: Clock,
        disk: Disk,
        folder: str,
        gap_max_ms: int,
        last_date: Callable[[], StoreDate | None],
    ) -> None:
        """`folder`: where the times are kept. `gap_max_ms`: the longest time off that is believed
        unconfirmed."""
        self._clock = clock
        self._disk = disk
        self._folder = folder
        self._gap_max_ms = max(gap_max_ms, JUMP_MAX_MS)
        self._last_date = last_date
        self._seen_date: StoreDate | None = None
        self._watch = WallWatch(None, 0)
        self._saved_ms: int | None = None
        self._taken: bytes | None = None  # the operator's word that was taken last
        self._floor_ms = 0  # a wall clock below it is looked at more closely
        self._said_ms: int | None = None  # when it was last said that the clock is doubted, monotonic
        self._was_behind = False
        self._looking = asyncio.Lock()  # what is kept is written by one at a time
        self._is_known = False
        self._is_learnt = False  # from metadata alone, since it is open
        self.ahead_ms = 0
        self.behind_ms = 0
        self.judged = TimeView(self, self.judged_ms)
        self.believed = TimeView(self, self.believed_ms)

    async def open(self, metadata_ms: int) -> None:
        """Reads what is kept. `metadata_ms`: the newest time in the metadata that is here, 0 where that is
        empty; it counts where nothing is kept. Where there is neither, nothing is changed. Else the newest
        known time is kept durably on return, where the disk takes it. Cancelling loses nothing."""
        newest_ms = await self._read(NEWEST)
        if newest_ms is None:
            newest_ms = metadata_ms
        if newest_ms:
            await self._begin(newest_ms)

    async def settle(self, metadata_ms: int) -> None:
        """Where `open` found no time: `metadata_ms` is the newest in all that is committed; with 0 the
        cluster is new, and the wall clock is believed. To be awaited before anything is deleted; again, what
        is newer by then counts as well."""
        if not self._is_known:
            self._is_learnt = True
            await self._begin(metadata_ms or None)
        elif self._is_learnt:
            self._watch.learn(metadata_ms, self._clock.wall_ms(), self._tick_ms())
            await self.look()

    async def _begin(self, newest_ms: int | None) -> None:
        self._is_known = True
        self._watch = WallWatch(newest_ms, self._tick_ms(), self._gap_max_ms)
        await self.look(self._gap_max_ms)

    async def run(self, ask_store: AskStore) -> None:
        """Until cancelled. `ask_store`: any small request, made of a store that told the time before, while
        the clock is doubted."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look()
            if self._last_date() is not None and (self.ahead_ms or self.behind_ms):
                try:
                    await ask_store()
                except MillraceError as error:
                    log.info(
                        "clock: the store was asked for its time, and did not answer: %s", in_words(error)
                    )

    async def look(self, gap_max_ms: int = JUMP_MAX_MS) -> None:
        """Takes an operator's word, given up to `gap_max_ms` ago, says what has changed, and keeps the newest
        known time."""
        async with self._looking:
            await self._take_confirmation(gap_max_ms)
            self._look()
            self._say()
            await self._save()

    # -- the two clocks

    def wall_ms(self) -> int:
        """The time for what is written now."""
        wall_ms = self._clock.wall_ms()
        if wall_ms >= self._floor_ms:
            return wall_ms
        return self._watch.stamped_ms(wall_ms, self._tick_ms())

    def asleep_ms(self) -> int:
        return self._clock.asleep_ms()

    def elapsed_ms(self) -> int:
        return self._clock.elapsed_ms()

    def judged_ms(self) -> int:
        """The time by which something may be found too old now."""
        return self._look()

    def believed_ms(self) -> int:
        """The wall clock's time while it is believed, else the newest known time, carried on to now."""
        if self._is_known:
            self._look()
        return self._clock.wall_ms() - self.ahead_ms + self.behind_ms

    # -- looking

    def _look(self) -> int:
        wall_ms, tick_ms, watch = self._clock.wall_ms(), self._tick_ms(), self._watch
        date = self._last_date()
        if date is not None and date is not self._seen_date:
            self._seen_date = date
            elapsed_ms = int((asyncio.get_running_loop().time() - date.came_s) * 1000)
            watch.on_store_date(date.wall_ms + elapsed_ms, wall_ms, tick_ms)
        judged_ms = watch.judged_ms(wall_ms, tick_ms)
        known_ms = watch.known_ms(wall_ms, tick_ms)
        self._floor_ms = known_ms - JUMP_MAX_MS
        self.ahead_ms = wall_ms - judged_ms
        self.behind_ms = known_ms - wall_ms if known_ms - wall_ms > JUMP_MAX_MS else 0
        return judged_ms

    def _say(self) -> None:
        tick_ms, known_ms = self._tick_ms(), self._clock.wall_ms() - self.ahead_ms + self.behind_ms
        if self.ahead_ms and (self._said_ms is None or tick_ms - self._said_ms >= SAY_AGAIN_MS):
            self._said_ms = tick_ms
            log.warning(
                "clock: the wall clock is %.1f hours ahead of the newest time that is known here, %s: "
                "retention by "
                "time is suspended beyond that, and so is the expiry of groups' offsets and objects. If the "
                "clock "
                "is right, and this node was off for so long, say so: millrace clock --confirm; else set it "
                "right",
                self.ahead_ms / 3_600_000,
                shown(known_ms),
            )
        elif not self.ahead_ms and self._said_ms is not None:
            self._said_ms = None
            log.info("clock: the wall clock is believed again, and retention by time goes on")
        if self.behind_ms and not self._was_behind:
            log.warning(
                "clock: the wall clock is %.1f hours behind the newest time that is known here, %s: records "
                "that "
                "the broker stamps get that time, and nothing is deleted by it. Set the clock right; if it "
                "is right, "
                "and was ahead before, say so: millrace clock --confirm",
                self.behind_ms / 3_600_000,
                shown(known_ms),
            )
        self._was_behind = bool(self.behind_ms)

    # -- keeping

    async def _take_confirmation(self, gap_max_ms: int) -> None:
        try:
            data = await self._disk.read_file(f"{self._folder}/{CONFIRMED}")
        except DiskFailed as error:
            log.warning("clock: %s cannot be read: %s", CONFIRMED, error)
            return
        if data is None or data == self._taken:
            return
        self._taken = data
        confirmed_ms = decode_time(data)
        if confirmed_ms is None:
            log.warning(
                "clock: %s/%s holds no time: make it with millrace clock --confirm", self._folder, CONFIRMED
            )
            return
        self._watch.confirm(confirmed_ms, self._tick_ms(), gap_max_ms)
        log.info("clock: an operator confirmed that it was %s", shown(confirmed_ms))
        if await self._write(confirmed_ms):
            try:
                await self._disk.remove(f"{self._folder}/{CONFIRMED}")
            except DiskFailed as error:
                log.warning("clock: %s cannot be removed: %s", CONFIRMED, error)

    async def _save(self) -> None:
        known_ms = self._watch.known_ms(self._clock.wall_ms(), self._tick_ms())
        if self._saved_ms is None or not 0 <= known_ms - self._saved_ms < SAVE_MS:
            await self._write(known_ms)

    async def _write(self, known_ms: int) -> bool:
        """Whether it is durable."""
        try:
            await self._disk.write_file(f"{self._folder}/{NEWEST}", encode_time(known_ms))
        except (DiskFailed, DiskFull) as error:
            log.warning("clock: the newest known time cannot be kept: %s", error)
            return False
        self._saved_ms = known_ms
        return True

    async def _read(self, name: str) -> int | None:
        """None where there is none; a file that is damaged is none, and is said."""
        try:
            data = await self._disk.read_file(f"{self._folder}/{name}")
        except DiskFailed as error:
            log.warning("clock: %s cannot be read: %s", name, error)
            return None
        found = None if data is None else decode_time(data)
        if data is not None and found is None:
            log.warning("clock: %s/%s is damaged: metadata's newest time stands in", self._folder, name)
        return found

    def _tick_ms(self) -> int:
        """The monotonic clock's, which goes on while the machine sleeps."""
        return int(asyncio.get_running_loop().time() * 1000) + self._clock.asleep_ms()


def make_known_time(
    settings: BrokerSettings, runtime: Runtime, last_date: Callable[[], StoreDate | None]
) -> KnownTime:
    """Of this node; to be opened."""
    log_dir, gap_max_ms = settings.controller.log_dir, settings.clock_gap_max_ms
    return KnownTime(runtime.clock, runtime.disk, log_dir, gap_max_ms, last_date)


def newest_in(image: MetadataImage) -> int:
    """When the newest committed object's data was; 0 where there is none."""
    stored = image.objects.by_id.values()
    return max((one.time_ms for one in stored if one.state is ObjectState.COMMITTED), default=0)


def newest_of(node: ControllerNode) -> int:
    """The newest time that its metadata tells; 0 where there is none."""
    return max(node.newest_ms, newest_in(node.publisher.image))


def show_clock(registry: Registry, known: KnownTime) -> None:
    ahead = "How far the wall clock is ahead of the newest known time; above 0 deletions by age are held back"
    registry.gauge("millrace_clock_ahead_seconds", ahead, lambda: known.ahead_ms / 1000)
    behind = "How far the wall clock is behind the newest known time, where that is more than an hour"
    registry.gauge("millrace_clock_behind_seconds", behind, lambda: known.behind_ms / 1000)
