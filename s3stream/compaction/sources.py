"""Reads what is compacted: an object's index, then its wanted blocks in their order, read ahead in few large requests.

Blocks that lie near each other come with one GET, at most a window of them: the memory for reading divided by the sources. A window is read
ahead while there is memory; one that is needed is read whatever there is, so that no block is too large to be compacted.

Keeps true: no byte is handed out whose checksums were not verified on this read; an object that is missing, damaged or refused is
SourceUnreadable with its id, and never an object without rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from millrace.runtime.errors import Corrupt, Exhausted, Unavailable
from millrace.runtime.objectstore import ObjectStore, StoreDenied
from millrace.s3stream.compaction.counts import CompactionCounts
from millrace.s3stream.compaction.plan import Bounds, SourceIndex, wanted_rows
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects.format import FOOTER_BYTES, BlockRef, check_block, decode_footer
from millrace.s3stream.objects.index import ObjectIndex
from millrace.s3stream.objects.reader import tail_guess_bytes

UNREADABLE = (Corrupt, Unavailable, Exhausted, StoreDenied)
GETS_IN_FLIGHT_MAX = 8
# Blocks within so much of each other come with one request whatever lies between them; beyond it, what lies between is an eighth at most.
NEAR_BYTES = 512 << 10
WASTE_PART = 8


class SourceUnreadable(Exception):
    """`is_away`: the store did not answer; the object itself may be sound."""

    def __init__(self, object_id: ObjectId, cause: Exception) -> None:
        super().__init__(object_id, cause)
        self.object_id = object_id
        self.cause = cause
        self.is_away = not isinstance(cause, Corrupt)

    def __str__(self) -> str:
        return f"object {self.object_id} cannot be read: {type(self.cause).__name__}: {self.cause}"


class ReadMemory:
    """What windows hold, all sources together, and how many requests run."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.peak_bytes = 0
        self.requests = asyncio.Semaphore(GETS_IN_FLIGHT_MAX)

    def take(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def has_room(self, size_bytes: int) -> bool:
        return self.held_bytes + size_bytes <= self.limit_bytes


class Window:
    """Blocks that one request brings: [start, end) of the object."""

    __slots__ = ("end", "refs", "start", "task")

    def __init__(self, first: BlockRef) -> None:
        self.start = first.position
        self.end = first.position + first.size_bytes
        self.refs = [first]
        self.task: asyncio.Task[memoryview] | None = None

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    def takes(self, ref: BlockRef, bytes_max: int) -> bool:
        """Whether the block comes with this request."""
        total = ref.position + ref.size_bytes - self.start
        if ref.position < self.end or total > bytes_max:
            return False
        gap = ref.position - self.end
        wanted = sum(own.size_bytes for own in self.refs) if gap and total > NEAR_BYTES else 0
        return not wanted or (total - wanted - ref.size_bytes) * WASTE_PART <= total

    def add(self, ref: BlockRef) -> None:
        self.refs.append(ref)
        self.end = ref.position + ref.size_bytes


class Source:
    """One object. `open`, then `begin` for the blocks, then `take` them in the order of `wanted_rows`; `close` in any case."""

    def __init__(
        self, store: ObjectStore, key: str, object_id: ObjectId, size_bytes: int, counts: CompactionCounts
    ) -> None:
        self.object_id = object_id
        self.size_bytes = size_bytes
        self._store = store
        self._key = key
        self._counts = counts
        self._whole: memoryview | None = None
        self._memory = ReadMemory(0)
        self._window_bytes = 0
        self._refs: Iterator[BlockRef] = iter(())
        self._left: BlockRef | None = None  # taken from `_refs`, in no window yet
        self._window: Window | None = None
        self._data = memoryview(b"")
        self._place = 0  # in the window
        self._ahead: Window | None = None

    async def open(self, memory: ReadMemory, whole_bytes_max: int) -> SourceIndex:
        """Its index. An object no larger than `whole_bytes_max` comes whole, and is held until `close`."""
        self._memory = memory
        size_bytes = self.size_bytes
        start = 0 if size_bytes <= whole_bytes_max else size_bytes - tail_guess_bytes(size_bytes)
        try:
            tail = await self._get(start, size_bytes)
            footer = decode_footer(tail[-FOOTER_BYTES:], size_bytes)
            place = footer.index_position - start
            if place >= 0:
                data = memoryview(bytes(tail[place : place + footer.index_size_bytes]))
            else:
                data = await self._get(footer.index_position, footer.index_position + footer.index_size_bytes)
            index = ObjectIndex(data, footer.index_position)
        except UNREADABLE as error:
            raise SourceUnreadable(self.object_id, error) from None
        if start == 0:
            self._whole = tail
            memory.take(len(tail))
        return SourceIndex(self.object_id, index)

    def begin(self, index: ObjectIndex, bounds: Bounds, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._refs = wanted_rows(SourceIndex(self.object_id, index), bounds)
        if self._whole is None:
            self._read_ahead()

    async def take(self, ref: BlockRef) -> tuple[memoryview, int]:
        """The block's bytes, verified, and the sum of its entries: a view that is good until the next call."""
        try:
            if self._whole is not None:
                data = self._whole[ref.position : ref.position + ref.size_bytes]
            else:
                data = await self._next(ref)
            return data, check_block(ref, data)
        except ObjectCorrupt as error:
            position = ref.position + error.position
            raise SourceUnreadable(self.object_id, ObjectCorrupt(error.reason, position, self._key)) from None
        except UNREADABLE as error:
            raise SourceUnreadable(self.object_id, error) from None

    async def close(self) -> None:
        """Ends what is under way and gives the memory back."""
        for window in (self._ahead, self._window):
            if window is not None:
                self._memory.held_bytes -= window.size_bytes
                if window.task is not None:
                    window.task.cancel()
                    await asyncio.gather(window.task, return_exceptions=True)
        if self._whole is not None:
            self._memory.held_bytes -= len(self._whole)
        self._whole = self._window = self._ahead = None
        self._data = memoryview(b"")

    async def _next(self, ref: BlockRef) -> memoryview:
        window = self._window
        if window is None or self._place == len(window.refs):
            window = await self._advance()
        own = window.refs[self._place]
        assert own == ref, (own, ref)
        self._place += 1
        start = own.position - window.start
        return self._data[start : start + own.size_bytes]

    async def _advance(self) -> Window:
        if self._window is not None:
            self._memory.held_bytes -= self._window.size_bytes
        self._window, self._ahead, self._place = self._ahead or self._start_window(), None, 0
        assert self._window is not None
        assert self._window.task is not None
        self._data = memoryview(b"")
        self._data = await self._window.task
        self._window.task = None
        self._read_ahead()
        return self._window

    def _read_ahead(self) -> None:
        if self._memory.has_room(self._window_bytes):
            self._ahead = self._start_window()

    def _start_window(self) -> Window | None:
        """The next blocks that come with one request."""
        first = self._left or next(self._refs, None)
        self._left = None
        if first is None:
            return None
        window = Window(first)
        for ref in self._refs:
            if not window.takes(ref, self._window_bytes):
                self._left = ref
                break
            window.add(ref)
        self._memory.take(window.size_bytes)
        window.task = asyncio.create_task(self._get(window.start, window.end), name=f"compaction-read-{self.object_id}")
        window.task.add_done_callback(_retrieve)
        return window

    async def _get(self, start: int, end: int) -> memoryview:
        async with self._memory.requests:
            data = memoryview(await self._store.get_range(self._key, start, end))
        self._counts.gets += 1
        self._counts.read_bytes += len(data)
        if len(data) != end - start:
            raise ObjectCorrupt(f"the store gave {len(data)} bytes of [{start}, {end})", start, self._key)
        return data


def _retrieve(task: asyncio.Task[memoryview]) -> None:
    """A read ahead that failed and that nobody waits for is not worth a warning."""
    if not task.cancelled():
        task.exception()
