"""Carries closed batches to the store, several at a time, and confirms them strictly in order of slot.

An upload is repeated for as long as it takes: a timeout or a refusal leaves its outcome unknown, every attempt sends the same bytes, and the
store knows them again. So a slow store makes producers wait and fails nothing. What ends the log is a newer owner's object in one of
our slots (WalFenced), or an error that no repetition mends. `on_failed` is called once and nothing is confirmed after it. Not here:
what keeps a replaced owner from writing (fence.py), when a batch is closed (batcher.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Exhausted, Unavailable
from millrace.runtime.objectstore import ObjectMissing, StoreDenied
from millrace.wal.object.batcher import ClosedBatch
from millrace.wal.object.fence import Fence
from millrace.wal.object.layout import Place, Stamp

log = logging.getLogger(__name__)

# What a store says that may be otherwise later. ObjectMissing: its bucket or folder is gone for now.
NOT_NOW = (TimeoutError, Unavailable, Exhausted, StoreDenied, ObjectMissing)
RETRY_PAUSE_MS_MIN = 50
RETRY_PAUSE_MS_MAX = 5_000
# The first attempt is given up after this; each later one gets twice the time, so that a large object passes a thin line in the end.
ATTEMPT_MS_MIN = 10_000
ATTEMPT_MS_MAX = 160_000


class Upload:
    __slots__ = ("batch", "is_done", "stamp", "task")

    def __init__(self, batch: ClosedBatch, stamp: Stamp) -> None:
        self.batch = batch
        self.stamp = stamp
        self.is_done = False
        self.task: asyncio.Task[None] | None = None


class BatchWriter:
    """`confirmed` is the end of the last slot of which all before are durable and ours; `confirmed_slot` the one after it."""

    def __init__(
        self,
        fence: Fence,
        confirmed: int,
        *,
        uploads_max: int,
        stamp: Callable[[ClosedBatch], tuple[Stamp, list[Buffer]]],
        on_group: Callable[[list[Upload]], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        """`stamp` gives a batch's last word, and its bytes; `on_group` is told of those just confirmed, in order."""
        self._fence = fence
        self._uploads_max = uploads_max
        self._stamp = stamp
        self._on_group = on_group
        self._on_failed = on_failed
        self._closed: deque[ClosedBatch] = deque()  # given, not yet begun
        self._under_way: deque[Upload] = deque()  # in order of slot; those that wait for an earlier one too
        self._verifying: asyncio.Task[None] | None = None
        self._active_count = 0  # uploads that are not done
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

    def put(self, batch: ClosedBatch) -> None:
        """Takes a batch, in order of slot; its upload begins as soon as there is a free slot."""
        self._closed.append(batch)
        self.pump()

    def pump(self) -> None:
        while self._closed and not self.has_failed and len(self._under_way) < self._uploads_max:
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
            upload.task = asyncio.create_task(self._upload(upload, parts), name=f"wal-slot-{batch.slot}")

    async def stop(self) -> None:
        """Gives up what is under way: its outcome stays unknown, and nobody is told."""
        self.has_failed = True
        tasks = [upload.task for upload in self._under_way if upload.task is not None]
        if self._verifying is not None:
            tasks.append(self._verifying)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _upload(self, upload: Upload, parts: list[Buffer]) -> None:
        try:
            await self._put(upload.batch.slot, parts)
        except Exception as error:
            self.fail(error)
            return
        finally:
            self._active_count -= 1
        upload.is_done = True
        if self._fence.is_verified_after:
            if self._verifying is None and self._under_way and self._under_way[0].is_done:
                self._verifying = asyncio.create_task(self._verify(), name="wal-verify")
        else:
            self._confirm(self._done_count())

    async def _put(self, slot: int, parts: list[Buffer]) -> None:
        place = Place(self._fence.epoch, slot)
        pause_ms, attempt_ms = RETRY_PAUSE_MS_MIN, ATTEMPT_MS_MIN
        while not self.has_failed:
            try:
                async with asyncio.timeout(attempt_ms / 1000):
                    await self._fence.put(place, parts)
                break
            except NOT_NOW as error:
                self._note_wait(slot, error)
            await asyncio.sleep(pause_ms / 1000)
            pause_ms, attempt_ms = min(RETRY_PAUSE_MS_MAX, 2 * pause_ms), min(ATTEMPT_MS_MAX, 2 * attempt_ms)
        if self._waits.pop(slot, None) is not None and not self._waits:
            log.info("the WAL goes on")

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
        """For stores without conditional writes: what is done now is confirmed if we are the owner after that."""
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
        """A batch that never began would hold up all behind it without a word. Told on the next turn: an append may be under way."""
        self.has_failed = True
        self._closed.clear()
        asyncio.get_running_loop().call_soon(self._on_failed, error)

    def fail(self, error: BaseException) -> None:
        if not self.has_failed:
            self.has_failed = True
            self._closed.clear()
            self._on_failed(error)
