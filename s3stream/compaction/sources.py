"""Reads what is compacted: an object's index, then its wanted blocks in their order, read ahead in few large
requests.

Blocks that lie near each other come with one GET, a window of them (windows.py). What was copied is given
back buffer by buffer; when that makes room for a window, it is read ahead for the source that will be the
first to have nothing left. A window that is needed is read whatever memory there is, a small one if need be,
so that no block is too large to be compacted.

Keeps true: no byte is handed out whose checksum was not verified on this read, but for a block that is
settled to be damaged (damage.py) and is handed out as such; an object that is missing, damaged or refused is
SourceUnreadable with its id, and never an object without rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence

from millrace.runtime.buffer_pool import BufferPool, PooledBuffer
from millrace.runtime.errors import Corrupt, Exhausted, Unavailable
from millrace.runtime.objectstore import ObjectStore, StoreDenied
from millrace.s3stream.compaction.config import CompactionSettings
from millrace.s3stream.compaction.counts import CompactionCounts
from millrace.s3stream.compaction.damage import Damage
from millrace.s3stream.compaction.plan import Bounds, SourceIndex, wanted_rows
from millrace.s3stream.compaction.windows import Window, staggered, window_sizes
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects.format import BlockRef, check_block
from millrace.s3stream.objects.index import ObjectIndex
from millrace.s3stream.objects.reader import read_index, tail_guess_bytes

log = logging.getLogger(__name__)
UNREADABLE = (Corrupt, Unavailable, Exhausted, StoreDenied)
GETS_IN_FLIGHT_MAX = 8
# A window that is needed while there is no room is no larger than this part of what it might be.
SHORT_PART = 4
Held = tuple[int, PooledBuffer]  # where it begins in the object
SCRAP = memoryview(bytearray(64 << 10))


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
    """What windows hold, all sources together, how many requests run, and whose window is read next."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.peak_bytes = 0
        self.pool = BufferPool(limit_bytes)
        self.requests = asyncio.Semaphore(GETS_IN_FLIGHT_MAX)
        self._sources: list[Source] = []

    @property
    def room_bytes(self) -> int:
        return max(0, self.limit_bytes - self.held_bytes)

    def take(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def widen(self, limit_bytes: int) -> None:
        """Before the first window: the plan leaves more to reading."""
        self.limit_bytes = limit_bytes
        self.pool = BufferPool(limit_bytes)

    def enroll(self, source: Source) -> None:
        """It is read ahead of from now on, when its turn comes."""
        self._sources.append(source)

    def read_ahead(self) -> None:
        """For whoever will be the first to have nothing left, as long as there is room."""
        while waiting := [source for source in self._sources if source.wants_ahead]:
            source = min(waiting, key=Source.next_key)
            if source.window_bytes > self.room_bytes:
                return
            source.read_ahead(source.window_bytes)


class Source:
    """One object. `open`, then `begin` for the blocks, then `take` them in the order of `wanted_rows`;
    `close` in any case."""

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        object_id: ObjectId,
        size_bytes: int,
        counts: CompactionCounts,
        damage: Damage,
        writer: int = 0,
    ) -> None:
        self.object_id = object_id
        self._writer = writer
        self.size_bytes = size_bytes
        self.window_bytes = 0
        self._store = store
        self._key = key
        self._counts = counts
        self._damage = damage
        self._whole: memoryview | None = None
        self._memory = ReadMemory(0)
        self._refs: Iterator[BlockRef] = iter(())
        self._left: BlockRef | None = None  # the first that is in no window yet
        self._ahead: deque[asyncio.Task[deque[Held]]] = deque()
        self._pieces: deque[Held] = deque()  # of the window in use
        self._held_bytes = 0

    @property
    def is_whole(self) -> bool:
        """All of it came with its index."""
        return self._whole is not None

    @property
    def memory(self) -> ReadMemory:
        """All sources' together."""
        return self._memory

    @property
    def wants_ahead(self) -> bool:
        return self._left is not None and not self._ahead

    def next_key(self) -> tuple[int, int]:
        """Where in the order of blocks it has nothing left."""
        left = self._left
        assert left is not None
        return left.stream_id, left.start

    async def open(self, memory: ReadMemory, whole_bytes_max: int) -> SourceIndex:
        """Its index. An object no larger than `whole_bytes_max` comes whole, and is held until `close`.
        Raises SourceUnreadable where it is damaged, missing, or the store does not answer."""
        self._memory = memory
        size_bytes = self.size_bytes
        start = 0 if size_bytes <= whole_bytes_max else size_bytes - tail_guess_bytes(size_bytes)
        try:
            index, tail = await read_index(self._get, size_bytes, start, self._writer)
        except UNREADABLE as error:
            raise SourceUnreadable(self.object_id, error) from None
        if start == 0:
            self._whole = tail
            self._hold(len(tail))
        return SourceIndex(self.object_id, index)

    def begin(self, index: ObjectIndex, bounds: Bounds, window_bytes: int, first_bytes: int) -> None:
        """`first_bytes`: of the first window, which is asked for at once if there is room for it."""
        self.window_bytes = window_bytes
        self._refs = wanted_rows(SourceIndex(self.object_id, index), bounds)
        self._left = next(self._refs, None)
        self._memory.enroll(self)
        if self._left is not None and first_bytes <= self._memory.room_bytes:
            self.read_ahead(first_bytes)

    async def take(self, ref: BlockRef) -> tuple[memoryview, int | None]:
        """The block's bytes, verified, and the sum of its entries: a view that is good until the next call.
        The sum is None for a block that is known to be damaged in the store. Raises SourceUnreadable as
        `open`."""
        try:
            if self._whole is not None:
                data = self._whole[ref.position : ref.position + ref.size_bytes]
            else:
                data = await self._next(ref)
            try:
                return data, check_block(ref, data)
            except ObjectCorrupt as error:
                return await self._again(ref, bytes(data), error)
        except ObjectCorrupt as error:
            position = error.position if error.key else ref.position + error.position
            raise SourceUnreadable(self.object_id, ObjectCorrupt(error.reason, position, self._key)) from None
        except UNREADABLE as error:
            raise SourceUnreadable(self.object_id, error) from None

    def read_ahead(self, bytes_max: int) -> None:
        """Asks for the next blocks that come with one request."""
        assert self._left is not None
        window = Window(self._left)
        self._left = None
        for ref in self._refs:
            if not window.takes(ref, bytes_max):
                self._left = ref
                break
            window.add(ref)
        self._hold(window.size_bytes)
        task = asyncio.create_task(self._fetch(window), name=f"compaction-read-{self.object_id}")
        task.add_done_callback(_retrieve)
        self._ahead.append(task)

    async def close(self) -> None:
        """Ends what is under way, and holds nothing any more."""
        self._left = None
        for task in self._ahead:
            task.cancel()
        await asyncio.gather(*self._ahead, return_exceptions=True)
        self._ahead.clear()
        self._pieces.clear()
        self._whole = None
        self._hold(-self._held_bytes)

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._memory.take(size_bytes)

    async def _next(self, ref: BlockRef) -> memoryview:
        """Blocks are asked for in order: what lies before this one is given back."""
        while not self._pieces or ref.position >= self._pieces[0][0] + len(self._pieces[0][1].view):
            if self._pieces:
                self._hold(-self._pieces.popleft()[1].size_bytes)
                self._memory.read_ahead()
            if not self._pieces:
                await self._advance()
        start, buffer = self._pieces[0]
        assert start <= ref.position, (start, ref)
        return buffer.view[ref.position - start : ref.position - start + ref.size_bytes]

    async def _again(
        self, ref: BlockRef, before: bytes, error: ObjectCorrupt
    ) -> tuple[memoryview, int | None]:
        """A damaged block, read once more: sound now, or known to be as it is, or the end of this look at the
        object."""
        data = await self._get(ref.position, ref.position + ref.size_bytes)
        try:
            return data, check_block(ref, data)
        except ObjectCorrupt:
            if data != before or not self._damage.is_settled(self.object_id, ref, data):
                self._damage.on_look(self.object_id)
                raise error from None
        self._counts.damaged_blocks += 1
        where = f"stream {ref.stream_id} [{ref.start}, {ref.end}), byte {ref.position} of {self._key}"
        log.error(
            "a damaged block is carried over as it is, its readers are told: %s: %s", where, error.reason
        )
        return data, None

    async def _advance(self) -> None:
        if not self._ahead:
            short_bytes = max(self._memory.room_bytes, self.window_bytes // SHORT_PART)
            self.read_ahead(min(self.window_bytes, short_bytes))
        self._pieces = await self._ahead[0]
        self._ahead.popleft()
        self._memory.read_ahead()

    async def _fetch(self, window: Window) -> deque[Held]:
        """The window in buffers, read straight into memory of their own."""
        room = Room(window, self._memory.pool)
        async with self._memory.requests:
            views, came_bytes = await self._store.get_into(self._key, window.start, window.end, room.lend)
        self._count(window.start, window.end, came_bytes)
        held = room.taken(views)
        self._hold(sum(buffer.size_bytes for _, buffer in held) - window.size_bytes)
        return held

    async def _get(self, start: int, end: int) -> memoryview:
        async with self._memory.requests:
            data = memoryview(await self._store.get_range(self._key, start, end))
        self._count(start, end, len(data))
        return data

    def _count(self, start: int, end: int, came_bytes: int) -> None:
        self._counts.gets += 1
        self._counts.read_bytes += came_bytes
        if came_bytes != end - start:
            raise ObjectCorrupt(f"the store gave {came_bytes} bytes of [{start}, {end})", start, self._key)


class Room:
    """Where a window is read to: a buffer of memory for each of its buffers, others for each attempt, for one
    that was given up may still be writing into its own. What lies between is read over something that nobody
    reads."""

    def __init__(self, window: Window, pool: BufferPool) -> None:
        self._window = window
        self._pool = pool
        self._attempts: list[tuple[list[memoryview], deque[Held]]] = []

    def lend(self) -> list[memoryview]:
        views: list[memoryview] = []
        held: deque[Held] = deque()
        place = self._window.start
        for start, end in self._window.spans():
            buffer = self._pool.acquire(end - start)
            views += [SCRAP[: start - gap] for gap in range(place, start, len(SCRAP))]
            views.append(buffer.view)
            held.append((start, buffer))
            place = end
        self._attempts.append((views, held))
        return views

    def taken(self, answered: Sequence[memoryview]) -> deque[Held]:
        return next(held for views, held in self._attempts if views is answered)


def begin_all(
    sources: Sequence[Source],
    indexes: Sequence[SourceIndex],
    bounds: Bounds,
    settings: CompactionSettings,
    reading_bytes: int,
) -> None:
    """Shares out what memory is left by those that came whole."""
    sources[0].memory.widen(reading_bytes)
    pairs = [(source, index) for source, index in zip(sources, indexes, strict=True) if not source.is_whole]
    if not pairs:
        return
    least_bytes, room_bytes = settings.block_bytes, sources[0].memory.room_bytes
    sizes = window_sizes(
        [one.size_bytes for one, _ in pairs], room_bytes, least_bytes, settings.read_bytes_max
    )
    for place, ((source, index), window_bytes) in enumerate(zip(pairs, sizes, strict=True)):
        first_bytes = staggered(window_bytes, place, len(pairs), least_bytes)
        source.begin(index.index, bounds, window_bytes, first_bytes)


def _retrieve(task: asyncio.Task[deque[Held]]) -> None:
    """A read ahead that failed and that nobody waits for is not worth a warning."""
    if not task.cancelled():
        task.exception()
