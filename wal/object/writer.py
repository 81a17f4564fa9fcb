"""Carries closed batches to the store, several at a time, and confirms them strictly in order of slot.

An upload is repeated for as long as it takes: a timeout or a refusal leaves its outcome unknown, every
attempt sends the same bytes under one sum (BytesChanged where they are others by now), and the store knows
them again. So a slow store makes producers wait and fails nothing. What ends the log is a newer owner's
object in one of our slots (WalFenced), or an error that no repetition mends. `on_failed` is called once and
nothing is confirmed after it. An upload that is late is put a second time, the same bytes in the same slot;
the first answer counts and the other put is given up, its outcome unknown, as after a time-out. Not here:
what keeps a replaced owner from writing, and why a late duplicate does no harm (fence.py), when a batch is
closed (batcher.py), when an upload is late (hedging.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Exhausted, Unavailable
from millrace.runtime.objectstore import ObjectMissing, StoreConflict, StoreDenied
from millrace.runtime.objectstore.body import Body, body_of
from millrace.wal.object.batcher import ClosedBatch
from millrace.wal.object.fence import Fence
from millrace.wal.object.hedging import Hedging
from millrace.wal.object.layout import HEADER_BYTES, Place, Stamp

log = logging.getLogger(__name__)

# What a store says that may be otherwise later. ObjectMissing: its bucket or folder is gone for now.
NOT_NOW = (TimeoutError, Unavailable, Exhausted, StoreDenied, ObjectMissing)
RETRY_PAUSE_MS_MIN = 50
RETRY_PAUSE_MS_MAX = 5_000
# The first attempt is given up after this; each later one gets twice the time, so that a large object passes
# a thin line in the end.
ATTEMPT_MS_MIN = 10_000
ATTEMPT_MS_MAX = 160_000


class Upload:
    __slots__ = ("batch", "hedge_now", "is_done", "is_hedged", "size_bytes", "stamp", "task")

    def __init__(self, batch: ClosedBatch, stamp: Stamp) -> None:
        self.batch = batch
        self.stamp = stamp
        self.size_bytes = HEADER_BYTES + batch.body_bytes
        self.is_done = False
        self.is_hedged = False
        # while it is late for whoever would wait behind it, and nobody does
        self.hedge_now: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] | None = None


class BatchWriter:
    """`confirmed` is the end of the last slot of which all before are durable and ours; `confirmed_slot` the
    one after it."""

    def __init__(
        self,
        fence: Fence,
        confirmed: int,
        *,
        hedging: Hedging,
        uploads_max: int,
        has_more: Callable[[], bool],
        stamp: Callable[[ClosedBatch], tuple[Stamp, list[Buffer]]],
        on_group: Callable[[list[Upload]], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        """`has_more`: records gather behind what is given. `stamp` gives a batch's last word, and its bytes;
        `on_group` is told of those just confirmed, in order."""
        self._fence = fence
        self._hedging = hedging
        self._uploads_max = uploads_max
        self._has_more = has_more
        self._stamp = stamp
        self._on_group = on_group
        self._on_failed = on_failed
        self._closed: deque[ClosedBatch] = deque()  # given, not yet begun
        self._under_way: deque[Upload] = deque()  # in order of slot; those that wait for an earlier one too
        self._verifying: asyncio.Task[None] | None = None
        self._active_count = 0  # uploads that are not done
        self._puts: dict[asyncio.Future[None], None] = {}  # under way, losers that were given up included
        self._duplicates = 0  # under way
        self._began_at = float("-inf")
        self._waits: dict[int, str] = {}  # slot -> why
        self.confirmed = confirmed
        self.confirmed_slot = 0
        self.has_failed = False
        self.retries = 0

    @property
    def is_idle(self) -> bool:
        return not self._under_way and not self._closed

    @property
    def has_free_slot(self) -> bool:
        return not self._closed and len(self._under_way) < self._uploads_max

    @property
    def uploads(self) -> int:
        """Objects on their way."""
        return self._active_count

    @property
    def blocked_reason(self) -> str:
        """What the store said to the first upload that waits, or "" when none does."""
        return next(iter(self._waits.values()), "")

    def since_last_ms(self, now: float) -> float:
        """Since the newest upload began."""
        return (now - self._began_at) * 1000

    @property
    def _may_begin(self) -> bool:
        """Duplicates count, as they do where one of them is to begin."""
        puts_count = self._active_count + self._duplicates
        return len(self._under_way) < self._uploads_max and puts_count < self._uploads_max

    def put(self, batch: ClosedBatch) -> None:
        """Takes a batch, in order of slot; its upload begins as soon as there is a free slot."""
        self._closed.append(batch)
        self.pump()

    def pump(self) -> None:
        while self._closed and not self.has_failed and self._may_begin:
            batch = self._closed.popleft()
            self._began_at = asyncio.get_running_loop().time()
            try:
                stamp, parts = self._stamp(batch)
            except Exception as error:
                self._fail_soon(error)
                return
            upload = Upload(batch, stamp)
            self._under_way.append(upload)
            self._active_count += 1
            upload.task = asyncio.create_task(
                self._upload(upload, body_of(parts)), name=f"wal-slot-{batch.slot}"
            )

    def hedge_now(self) -> None:
        """A record waits behind what is under way."""
        for upload in self._under_way:
            if upload.hedge_now is not None and not upload.hedge_now.done():
                upload.hedge_now.set_result(None)

    async def stop(self) -> None:
        """Gives up what is under way: its outcome stays unknown, and nobody is told."""
        self.has_failed = True
        tasks = [upload.task for upload in self._under_way if upload.task is not None]
        if self._verifying is not None:
            tasks.append(self._verifying)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*self._puts, return_exceptions=True)

    async def _upload(self, upload: Upload, body: Body) -> None:
        try:
            await self._put(upload, body)
        except Exception as error:
            self.fail(error)
            return
        finally:
            self._active_count -= 1
        upload.is_done = True
        self.pump()  # it may stand behind one that is not done
        if self._fence.is_verified_after:
            if self._verifying is None and self._under_way and self._under_way[0].is_done:
                self._verifying = asyncio.create_task(self._verify(), name="wal-verify")
        else:
            self._confirm(self._done_count())

    async def _put(self, upload: Upload, body: Body) -> None:
        slot, began_ms, has_waited = upload.batch.slot, now_ms(), False
        pause_ms, attempt_ms = RETRY_PAUSE_MS_MIN, ATTEMPT_MS_MIN
        while not self.has_failed:
            try:
                async with asyncio.timeout(attempt_ms / 1000):
                    await self._attempt(upload, body)
                break
            except NOT_NOW as error:
                has_waited = True
                self._hedging.on_refused(now_ms())
                self._note_wait(slot, error)
            await asyncio.sleep(pause_ms / 1000)
            pause_ms, attempt_ms = min(RETRY_PAUSE_MS_MAX, 2 * pause_ms), min(ATTEMPT_MS_MAX, 2 * attempt_ms)
        if not has_waited:
            self._hedging.on_uploaded(now_ms() - began_ms)
        if self._waits.pop(slot, None) is not None and not self._waits:
            log.info("the WAL goes on")

    async def _attempt(self, upload: Upload, body: Body) -> None:
        """One put, or two at once; raises what the first answer was, or the last refusal where both were
        refused."""
        early_ms = self._hedging.early_ms
        if early_ms is None or upload.is_hedged:
            return await self._fence.put(Place(self._fence.epoch, upload.batch.slot), body)
        puts, winner = [self._begin_put(upload, body)], None
        try:
            if await self._is_late(upload, puts[0], early_ms) and self._may_duplicate(upload):
                upload.is_hedged = True
                self._duplicates += 1
                puts.append(self._begin_put(upload, body))
            winner = await self._first_answer(puts)
            return winner.result()
        finally:
            if upload.is_hedged:
                self._duplicates -= 1
                is_answer = winner is not None and winner.exception() is None
                self._hedging.end(upload.size_bytes, has_won=winner is not puts[0] if is_answer else None)
            for put in puts:
                put.cancel()
            if upload.is_hedged:
                self.pump()

    def _begin_put(self, upload: Upload, body: Body) -> asyncio.Future[None]:
        place = Place(self._fence.epoch, upload.batch.slot)
        put = asyncio.create_task(self._fence.put(place, body), name=f"wal-put-{place.slot}")
        self._puts[put] = None
        put.add_done_callback(self._on_put_done)
        return put

    def _on_put_done(self, put: asyncio.Future[None]) -> None:
        """What became of a loser is nobody's, but it is taken."""
        del self._puts[put]
        if not put.cancelled():
            put.exception()

    async def _is_late(self, upload: Upload, first: asyncio.Future[None], early_ms: float) -> bool:
        """Waits until the put is late or done."""
        await asyncio.wait([first], timeout=early_ms / 1000)
        if not first.done() and not self._is_waited_for:
            upload.hedge_now = asyncio.get_running_loop().create_future()
            left_s = (self._hedging.late_ms - early_ms) / 1000
            await asyncio.wait([first, upload.hedge_now], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            upload.hedge_now = None
        return not first.done()

    @property
    def _is_waited_for(self) -> bool:
        """Whether anything stands behind the first upload, or before the last."""
        return len(self._under_way) > 1 or bool(self._closed) or self._has_more()

    def _may_duplicate(self, upload: Upload) -> bool:
        """Duplicates count among the uploads at once: there may be no more connections than these."""
        if self.has_failed or self._waits or self._active_count + self._duplicates >= self._uploads_max:
            return False
        return self._hedging.begin(upload.size_bytes, now_ms())

    async def _first_answer(self, puts: Sequence[asyncio.Future[None]]) -> asyncio.Future[None]:
        """The first that is no refusal; the last one, where all are refused. In the order of the puts when
        both are done."""
        left = list(puts)
        while True:
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for put in [put for put in left if put.done()]:
                if len(left) == 1 or not isinstance(put.exception(), NOT_NOW):
                    return put
                if not isinstance(put.exception(), StoreConflict):  # which is the other put of this very slot
                    self._hedging.on_refused(now_ms())
                left.remove(put)

    def _note_wait(self, slot: int, error: BaseException) -> None:
        self.retries += 1
        reason = f"the WAL waits for its store: {type(error).__name__}: {error}"
        if not self._waits:
            log.warning("%s", reason)
        self._waits[slot] = reason

    def _done_count(self) -> int:
        """How many from the first on are done."""
        count = 0
        for upload in self._under_way:
            if not upload.is_done:
                break
            count += 1
        return count

    async def _verify(self) -> None:
        """For stores without conditional writes: what is done now is confirmed if we are the owner after
        that."""
        try:
            while (count := self._done_count()) and not self.has_failed:
                await self._fence.verify()
                self._confirm(count)
        except Exception as error:
            self.fail(error)
        finally:
            self._verifying = None

    def _confirm(self, count: int) -> None:
        if not count or self.has_failed:
            return
        group = [self._under_way.popleft() for _ in range(count)]
        self.confirmed = group[-1].batch.end
        self.confirmed_slot = group[-1].batch.slot + 1
        self.pump()
        try:
            self._on_group(group)
        except Exception as error:
            self.fail(error)

    def _fail_soon(self, error: BaseException) -> None:
        """A batch that never began would hold up all behind it without a word. Told in the next iteration: an
        append may be under way."""
        self.has_failed = True
        self._closed.clear()
        asyncio.get_running_loop().call_soon(self._on_failed, error)

    def fail(self, error: BaseException) -> None:
        if not self.has_failed:
            self.has_failed = True
            self._closed.clear()
            self._on_failed(error)


def now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
