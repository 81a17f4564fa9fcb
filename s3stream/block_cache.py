"""History: entries read from objects, block by block, kept while memory allows, and read ahead for those who
read on.

Not here: what is in the log cache (storage.py asks it first), which blocks to keep (block_lru.py), how far to
read ahead (readahead.py), how blocks are fetched (block_loader.py: once, few GETs). Keeps true:
  * what is cached, what is on its way and what was dropped while a slow reader's reply still shows it are
    within one bound; a block is charged with its memory and the places of its entries, and pins nothing but
    them;
  * objects are replaced by compaction while they are read: one that is gone is looked up anew, a bounded
    number of times.
"""

from __future__ import annotations

import asyncio
import logging

from millrace.runtime.buffer_pool import BufferPool
from millrace.runtime.errors import Unavailable, in_words
from millrace.runtime.objectstore import ObjectMissing
from millrace.s3stream.block_loader import BlockKey, BlockLoader, CachedBlock
from millrace.s3stream.block_lru import BlockLru
from millrace.s3stream.config import StreamSettings
from millrace.s3stream.errors import ObjectCorrupt, OffsetGap, RangeLost, RangeOwed
from millrace.s3stream.finder import FoundBlocks, ObjectFinder
from millrace.s3stream.metadata import ObjectCatalog
from millrace.s3stream.objects.format import INT64_MAX
from millrace.s3stream.read_accumulator import ReadAccumulator
from millrace.s3stream.readahead import ReadAhead, Readers
from millrace.s3stream.traffic import EngineStores

log = logging.getLogger(__name__)

# An object that is not found, or not yet: the image of metadata may lag behind a commit or a compaction.
# Pauses between looks.
LOOKUP_PAUSES_MS = (0, 10, 50, 200, 500)
GETS_IN_FLIGHT_MAX = 16
# A stream that has little in each object is read from so many at a time: the store's delay is paid once for
# all of them.
OBJECTS_AT_A_TIME = 8
# Replies under way show blocks that the cache dropped; their memory is used again rather than made anew, up
# to this part of the bound beside it.
LOOSE_PART = 4
# At most this part of the cache is read ahead for one reader.
READAHEAD_PART = 2
# How many entries are made for one reader before others may run: a third of a millisecond.
TAKEN_PER_CHUNK = 256
# Of fewer, taken since the reader last yielded, the making is less work than the queue.
SMALL_COUNT = 32


class BlockCache:
    def __init__(
        self, stores: EngineStores, objects: ObjectCatalog, settings: StreamSettings, cluster_id: str
    ) -> None:
        self._settings = settings
        self._blocks: BlockLru[BlockKey, CachedBlock] = BlockLru(settings.block_cache_bytes)
        self.pool = BufferPool(settings.block_cache_bytes + settings.block_cache_bytes // LOOSE_PART)
        self.finder = ObjectFinder(stores.reads, objects, cluster_id, settings.index_cache_bytes)
        self._ahead: dict[asyncio.Task[None], None] = {}
        get_bytes_max = settings.read_merge_bytes
        self._yield_queue = stores.yield_queue
        self._sequential = Readers(
            settings.readahead_bytes_min,
            min(settings.readahead_bytes_max, settings.block_cache_bytes // READAHEAD_PART),
            get_bytes_max // 2,
        )
        gets_max = max(2, min(GETS_IN_FLIGHT_MAX, settings.block_cache_bytes // (2 * get_bytes_max)))
        self.loader = BlockLoader(
            self, stores.reads, stores.read_ahead, get_bytes_max, gets_max, self._yield_queue
        )
        self.reads_from_block_cache = 0
        self.reads_from_objects = 0
        self.readahead_bytes = 0
        self.unused_readahead_evicted = 0

    @property
    def size_bytes(self) -> int:
        return self._blocks.size_bytes

    @property
    def reserved_bytes(self) -> int:
        """For what is on its way."""
        return self._blocks.reserved_bytes

    @property
    def evicted_count(self) -> int:
        return self._blocks.evicted_count

    async def read(self, accumulator: ReadAccumulator) -> None:
        """Fills the accumulator from objects, up to its end. On return it is full, or at least one entry
        richer. Raises RangeOwed, RangeLost where no object holds the first. Cancelling loses nothing."""
        start, left_bytes = accumulator.next_offset, accumulator.left_bytes
        await self._read_patiently(accumulator)
        if accumulator.has_loaded:
            self.reads_from_objects += 1
        else:
            self.reads_from_block_cache += 1
        read_bytes = left_bytes - accumulator.left_bytes
        planned = self._sequential.on_read(
            accumulator.stream_id, start, accumulator.next_offset, read_bytes, _now_ms()
        )
        if planned is not None:
            self._start_reading_ahead(accumulator.stream_id, *planned)

    def drop_stream(self, stream_id: int) -> None:
        """Its blocks go by themselves: nobody asks for them again."""
        self._sequential.drop_stream(stream_id)

    def drop_all(self) -> None:
        """Forgets every block and index, so that the next read reads objects."""
        for block in self._blocks.drop_all():
            block.buffer.release()
        self.finder.drop_all()

    async def close(self) -> None:
        """Ends what is under way; those who wait for it are told Closed."""
        tasks = list(self._ahead)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.loader.close()

    # Keeper, for the loader.

    def reserve(self, size_bytes: int) -> None:
        self._blocks.beside_bytes = self.pool.released_bytes
        self._note_evicted(self._blocks.reserve(size_bytes))

    def release(self, size_bytes: int) -> None:
        self._blocks.release(size_bytes)

    def keep(self, block: CachedBlock) -> None:
        self._blocks.beside_bytes = self.pool.released_bytes
        self._note_evicted(self._blocks.put(block.key, block, block.packed.charge_bytes))

    async def _read_patiently(self, accumulator: ReadAccumulator) -> None:
        """What was gathered before something went wrong is given; the reader that goes on from there meets
        it."""
        for pause_ms in LOOKUP_PAUSES_MS:
            try:
                return await self._read_on(accumulator)
            except (ObjectMissing, OffsetGap):
                if accumulator.entries:
                    return
                await asyncio.sleep(pause_ms / 1000)
            except (ObjectCorrupt, RangeLost, Unavailable):
                if accumulator.entries:
                    return
                raise
        await self._read_on(accumulator)

    async def _read_on(self, accumulator: ReadAccumulator) -> None:
        """One object first, that is all there is to most reads; then several at a time, for a stream of which
        each holds little."""
        objects_max = 1
        while not accumulator.is_full:
            wanted = accumulator.stream_id, accumulator.next_offset, accumulator.end, accumulator.left_bytes
            loads = [self._begin(found) for found in await self.finder.find_some(*wanted, objects_max)]
            objects_max = OBJECTS_AT_A_TIME
            for load in loads:
                for place in load:
                    accumulator.has_loaded |= isinstance(place, asyncio.Future)
                    block = await asyncio.shield(place) if isinstance(place, asyncio.Future) else place
                    await self._take(block, accumulator)

    async def _take(self, block: CachedBlock, accumulator: ReadAccumulator) -> None:
        """What of the block the accumulator still has room for, in chunks between which the caller yields."""
        block.ahead, packed = None, block.packed
        while True:
            if len(accumulator.entries) % SMALL_COUNT + len(packed) >= SMALL_COUNT:
                await self._yield_queue.yield_now()
            accumulator.take(
                packed.entries(
                    accumulator.next_offset, accumulator.end, accumulator.left_bytes, TAKEN_PER_CHUNK
                )
            )
            if accumulator.is_full or accumulator.next_offset >= packed.end:
                break
        if block.is_for_once and accumulator.next_offset >= packed.end:
            # A stream passes through: what was read goes before what was read ahead and waits. Who reads it
            # again keeps it.
            block.is_for_once = False
            self._blocks.demote(block.key)

    def _begin(self, blocks: FoundBlocks) -> list[CachedBlock | asyncio.Future[CachedBlock]]:
        """The blocks of these rows, in order: from the cache, from a load that is under way, or from one that
        begins now."""
        found: list[CachedBlock | asyncio.Future[CachedBlock]] = []
        for ref in blocks.refs:
            key = (blocks.object_id, ref.position)
            found.append(self._blocks.get(key) or self.loader.load(key, ref, blocks.reader, None))
        return found

    def _load_ahead(self, found: list[FoundBlocks], reader: ReadAhead) -> None:
        """Waits for none of them and holds none: what the cache drops meanwhile is gone."""
        for blocks in found:
            for ref in blocks.refs:
                key = (blocks.object_id, ref.position)
                if key not in self._blocks:
                    self.loader.load(key, ref, blocks.reader, reader)
                reader.on_asked(ref.end, ref.size_bytes)
                self.readahead_bytes += ref.size_bytes

    def _note_evicted(self, evicted: list[CachedBlock]) -> None:
        for block in evicted:
            block.buffer.release()
            if block.ahead is not None:
                self.unused_readahead_evicted += 1
                block.ahead.on_evicted(_now_ms())

    def _start_reading_ahead(self, stream_id: int, reader: ReadAhead, start: int, size_bytes: int) -> None:
        task = asyncio.create_task(
            self._read_ahead(stream_id, reader, start, size_bytes), name=f"readahead-{stream_id}"
        )
        self._ahead[task] = None
        task.add_done_callback(self._on_read_ahead)

    async def _read_ahead(self, stream_id: int, reader: ReadAhead, start: int, size_bytes: int) -> None:
        offset, left_bytes = start, size_bytes
        try:
            while left_bytes > 0:
                try:
                    found = await self.finder.find_some(
                        stream_id, offset, INT64_MAX, left_bytes, OBJECTS_AT_A_TIME
                    )
                except (ObjectMissing, OffsetGap, RangeOwed, RangeLost):
                    # the end of what is committed, or an object that is gone: who reads there looks again
                    return
                self._load_ahead(found, reader)
                offset = found[-1].refs[-1].end
                left_bytes -= sum(ref.size_bytes for blocks in found for ref in blocks.refs)
        finally:
            reader.on_looked()

    def _on_read_ahead(self, task: asyncio.Task[None]) -> None:
        """A failure is nobody's: whoever needs the bytes reads them itself and meets it there."""
        self._ahead.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("read-ahead ended early: %s", in_words(error))


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
