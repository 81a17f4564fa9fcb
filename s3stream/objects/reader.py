"""Reads one object: footer and index with one GET in the normal case, then the ranges a fetch needs.

Not here: which object (the catalog knows), what to keep (the block cache decides; `index` may be handed in
and taken out), retries (the store's wrapper). What it keeps true: no byte leaves that was not verified on
this very read, and a range that the store cut short, a wrong sum or a row that does not match its blocks is
ObjectCorrupt with the key. Cancelling loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from millrace.runtime.buffer_pool import BufferPool, PooledBuffer
from millrace.runtime.objectstore import ObjectStore, fill
from millrace.runtime.scheduling.yield_queue import YieldQueue, yield_to_loop
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.objects.composite import CompositeIndex, Link
from millrace.s3stream.objects.format import (
    FOOTER_BYTES,
    ROW_BYTES,
    BlockRef,
    Entry,
    check_writer,
    decode_footer,
)
from millrace.s3stream.objects.index import ObjectIndex
from millrace.s3stream.objects.packed import PackedBlock

# The first GET reaches this far back from the end: room for 450 rows, and for two per MiB of the object.
TAIL_BYTES_MIN = 16 << 10
# What nobody asked for is read over this: by several at once, for nobody reads it.
_SCRAP = memoryview(bytearray(64 << 10))


def tail_guess_bytes(size_bytes: int) -> int:
    """How much of an object's end to ask for so that its index is in it."""
    return min(size_bytes, TAIL_BYTES_MIN + 2 * ROW_BYTES * (size_bytes >> 20))


async def read_index(
    read: Callable[[int, int], Awaitable[memoryview]], size_bytes: int, tail_start: int, writer: int = 0
) -> tuple[ObjectIndex, memoryview]:
    """An object's index, and its bytes from `tail_start` on, which come first: one read more where the index
    begins before them. The index pins nothing of the tail. `writer`: the token that metadata names, as in
    check_writer. Raises ObjectCorrupt, which names no object, and what `read` raises."""
    tail = await read(tail_start, size_bytes)
    footer = decode_footer(tail[-FOOTER_BYTES:], size_bytes)
    check_writer(footer, writer)
    place = footer.index_position - tail_start
    if place >= 0:
        data = memoryview(bytes(tail[place : place + footer.index_size_bytes]))
    else:
        data = await read(footer.index_position, footer.index_position + footer.index_size_bytes)
    return ObjectIndex(data, footer.index_position), tail


class ObjectReader:
    def __init__(
        self, store: ObjectStore, key: str, size_bytes: int, index: ObjectIndex | None = None, writer: int = 0
    ) -> None:
        """`index`: kept from an earlier reader of the same object, saves the first GET. `writer`: the token
        that metadata names for the object, as in check_writer."""
        self.key = key
        self._writer = writer
        self.size_bytes = size_bytes
        self._store = store
        self._index = index
        # an object no larger than the tail guess arrives whole with its index
        self._whole: memoryview | None = None
        self._loading: asyncio.Task[ObjectIndex] | None = None
        # Whoever comes with the index has seen the footer.
        self._is_writer_known = not writer or index is not None
        self._checking: asyncio.Task[None] | None = None

    @property
    def known_index(self) -> ObjectIndex | None:
        """The index, if it was loaded."""
        return self._index

    async def index(self) -> ObjectIndex:
        """Loaded once; those who ask meanwhile share the load, and go on in one iteration of the loop."""
        if self._index is None:
            if self._loading is None:
                self._loading = asyncio.create_task(self._load_index(), name=f"index-{self.key}")
                self._loading.add_done_callback(self._on_loaded)
            return await asyncio.shield(self._loading)
        return self._index

    def _on_loaded(self, loading: asyncio.Task[ObjectIndex]) -> None:
        self._loading = None
        if not loading.cancelled() and loading.exception() is None:
            self._index = loading.result()
            self._is_writer_known = True

    async def find(self, stream_id: int, start: int, end: int, max_bytes: int) -> list[BlockRef]:
        """See ObjectIndex.find."""
        index = self._index or await self.index()
        try:
            return index.find(stream_id, start, end, max_bytes)
        except ObjectCorrupt as error:
            raise self._named(error, 0) from None

    async def read_block(self, ref: BlockRef) -> list[Entry]:
        return (await self.scan(ref, await self.read_span([ref]))).all_entries()

    async def read_blocks(self, refs: Sequence[BlockRef]) -> list[list[Entry]]:
        """Entries block by block, in the order asked. Blocks that lie side by side come with one GET; each
        block's entries pin the bytes of that block alone, so that a cache may keep one and drop its
        neighbour."""
        runs = _adjacent(refs)
        datas = await asyncio.gather(*(self.read_span(run) for run in runs))
        blocks: list[list[Entry]] = []
        for run, data in zip(runs, datas, strict=True):
            for ref in run:
                start = ref.position - run[0].position
                own = data if len(run) == 1 else memoryview(bytes(data[start : start + ref.size_bytes]))
                blocks.append((await self.scan(ref, own)).all_entries())
        return blocks

    async def read_span(self, refs: Sequence[BlockRef], store: ObjectStore | None = None) -> memoryview:
        """The bytes from the first of these blocks to the last, which are in the order of their positions,
        with one GET. `store`: by another way than the reader's own. What comes pins nothing but itself. Where
        the footer was not seen yet, it comes with a small GET at the same time."""
        checking = self._begin_check()
        data = await self._read(refs[0].position, _end(refs[-1]), store)
        if checking is not None:
            await asyncio.shield(checking)
        return data

    async def read_apart(
        self, refs: Sequence[BlockRef], pool: BufferPool, store: ObjectStore | None = None
    ) -> list[PooledBuffer]:
        """As read_span, each block in a buffer of its own. What nobody asked for between them is read over
        something that nobody reads."""
        room = _Room(refs, pool)
        start, end = refs[0].position, _end(refs[-1])
        checking = self._begin_check()
        try:
            if self._whole is not None:
                views, came_bytes = fill(room.lend(), self._whole[start:end])
            else:
                views, came_bytes = await (store or self._store).get_into(self.key, start, end, room.lend)
            self._check_whole(start, end, came_bytes)
            if checking is not None:
                await asyncio.shield(checking)
        except BaseException:
            room.release()
            raise
        return room.taken(views)

    async def scan(
        self,
        ref: BlockRef,
        data: memoryview,
        pinned_bytes: int | None = None,
        yield_queue: YieldQueue | None = None,
    ) -> PackedBlock:
        """A block from its bytes, checked. The caller yields on the way, in `yield_queue` if there is one."""
        block = PackedBlock(data, ref.end, pinned_bytes)
        yield_now = yield_to_loop if yield_queue is None else yield_queue.yield_now
        try:
            await yield_now()
            for _ in block.scan(ref):
                await yield_now()
        except ObjectCorrupt as error:
            # what came may have been damaged on its way: whoever asks again asks the store
            self._whole = None
            named = self._named(error, ref.position)
            named.offsets = ref.start, ref.end
            raise named from None
        return block

    def _begin_check(self) -> asyncio.Task[None] | None:
        """Of an object that was found by a composite's rows, whose own index nobody reads: the footer is read
        once."""
        if self._is_writer_known:
            return None
        if self._checking is None:
            self._checking = asyncio.create_task(self._check_writer(), name=f"footer-{self.key}")
            self._checking.add_done_callback(self._on_checked)
        return self._checking

    def _on_checked(self, checking: asyncio.Task[None]) -> None:
        self._checking = None
        if not checking.cancelled() and checking.exception() is None:
            self._is_writer_known = True

    async def _check_writer(self) -> None:
        tail = await self._read(self.size_bytes - FOOTER_BYTES, self.size_bytes)
        try:
            check_writer(decode_footer(tail, self.size_bytes), self._writer)
        except ObjectCorrupt as error:
            raise self._named(error, self.size_bytes - FOOTER_BYTES) from None

    async def _load_index(self) -> ObjectIndex:
        tail_start = self.size_bytes - tail_guess_bytes(self.size_bytes)
        try:
            index, tail = await read_index(self._read, self.size_bytes, tail_start, self._writer)
        except ObjectCorrupt as error:
            raise self._named(error, 0) from None
        if tail_start == 0:
            self._whole = tail
        return index

    async def _read(self, start: int, end: int, store: ObjectStore | None = None) -> memoryview:
        if self._whole is not None:
            return memoryview(bytes(self._whole[start:end]))
        data = memoryview(await (store or self._store).get_range(self.key, start, end))
        self._check_whole(start, end, len(data))
        return data

    def _check_whole(self, start: int, end: int, came_bytes: int) -> None:
        if came_bytes != end - start:
            raise ObjectCorrupt(f"the store gave {came_bytes} bytes of [{start}, {end})", start, self.key)

    def _named(self, error: ObjectCorrupt, position: int) -> ObjectCorrupt:
        return error if error.key else ObjectCorrupt(error.reason, position + error.position, self.key)


class CompositeReader:
    """Reads one composite: which linked object holds an offset, and its blocks there. Their data comes by an
    ObjectReader of that object."""

    def __init__(self, store: ObjectStore, key: str, writer: int = 0) -> None:
        """`writer`: as ObjectReader's."""
        self.key = key
        self._writer = writer
        self._store = store
        self._index: CompositeIndex | None = None
        self._loading = asyncio.Lock()

    @property
    def known_index(self) -> CompositeIndex | None:
        """The index, if it was loaded."""
        return self._index

    async def index(self) -> CompositeIndex:
        """Loaded once, with one GET of the whole object; those who ask meanwhile share the load. Raises
        ObjectCorrupt where it is damaged, ObjectMissing where it is gone."""
        async with self._loading:
            if self._index is None:
                data = memoryview(await self._store.get(self.key))
                try:
                    self._index = CompositeIndex(data, self._writer)
                except ObjectCorrupt as error:
                    raise ObjectCorrupt(error.reason, error.position, self.key) from None
            return self._index

    async def find(
        self, stream_id: int, start: int, end: int, max_bytes: int
    ) -> tuple[Link, list[BlockRef]] | None:
        """See CompositeIndex.find. Raises ObjectCorrupt, with the key."""
        index = self._index or await self.index()
        try:
            return index.find(stream_id, start, end, max_bytes)
        except ObjectCorrupt as error:
            raise ObjectCorrupt(error.reason, error.position, self.key) from None


class _Room:
    """Where one span of an object is read to: buffers for its blocks, others for each attempt, for one that
    was given up may still be writing into its own."""

    def __init__(self, refs: Sequence[BlockRef], pool: BufferPool) -> None:
        self._refs = refs
        self._pool = pool
        self._attempts: list[tuple[list[memoryview], list[PooledBuffer]]] = []

    def lend(self) -> list[memoryview]:
        self.release()
        buffers = [self._pool.acquire(ref.size_bytes) for ref in self._refs]
        views: list[memoryview] = []
        place = self._refs[0].position
        for ref, buffer in zip(self._refs, buffers, strict=True):
            for gap_start in range(place, ref.position, len(_SCRAP)):
                views.append(_SCRAP[: ref.position - gap_start])
            views.append(buffer.view)
            place = _end(ref)
        self._attempts.append((views, buffers))
        return views

    def release(self) -> None:
        """Whoever writes into what was lent goes on with it alone."""
        for _, buffers in self._attempts:
            for buffer in buffers:
                buffer.release()

    def taken(self, views: Sequence[memoryview]) -> list[PooledBuffer]:
        """The buffers of the attempt that was answered."""
        [taken] = [buffers for lent, buffers in self._attempts if lent is views]
        self.release()
        for buffer in taken:
            buffer.retain()
        return taken


def _adjacent(refs: Sequence[BlockRef]) -> list[list[BlockRef]]:
    runs: list[list[BlockRef]] = []
    for ref in refs:
        if runs and _end(runs[-1][-1]) == ref.position:
            runs[-1].append(ref)
        else:
            runs.append([ref])
    return runs


def _end(ref: BlockRef) -> int:
    return ref.position + ref.size_bytes
