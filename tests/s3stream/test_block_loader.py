"""Blocks on their way: how many GETs at once, who goes first, what they may take of memory, and what is left
of them after a long run."""

from __future__ import annotations

import asyncio
import gc

import pytest

from millrace.runtime.buffer_pool import BufferPool, buffer_size
from millrace.runtime.clock import SystemClock
from millrace.runtime.errors import Closed
from millrace.runtime.objectstore import StoreUnavailable
from millrace.runtime.rand import Rand
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.block_cache import BlockCache
from millrace.s3stream.block_loader import BlockKey, BlockLoader, CachedBlock
from millrace.s3stream.config import StreamSettings
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import ObjectId, StreamId
from millrace.s3stream.objects.format import BlockRef, Entry
from millrace.s3stream.objects.reader import ObjectReader
from millrace.s3stream.objects.writer import ObjectWriter
from millrace.s3stream.read_accumulator import ReadAccumulator
from millrace.s3stream.readahead import ReadAhead
from millrace.s3stream.traffic import EngineStores
from tests.s3stream.build import CLUSTER_ID, World, append, open_stream, run
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.objectstore import SimBucket, SimObjectStore, StoreFault, StoreFaults

KIB = 1024
KEY = "object"
OBJECT = ObjectId(7)


class StreamSetGroup:
    """A keeper that only counts."""

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self.most_reserved_bytes = 0
        self.kept: list[BlockKey] = []
        self.pool = BufferPool(1 << 30)

    def reserve(self, size_bytes: int) -> None:
        self.reserved_bytes += size_bytes
        self.most_reserved_bytes = max(self.most_reserved_bytes, self.reserved_bytes)

    def release(self, size_bytes: int) -> None:
        self.reserved_bytes -= size_bytes
        assert self.reserved_bytes >= 0

    def keep(self, block: CachedBlock) -> None:
        self.kept.append(block.key)


class Bench:
    """An object of one stream, one entry of 1 KiB a block, in a store that takes 10 ms a GET."""

    def __init__(self, blocks_count: int = 40, gets_max: int = 2, get_bytes_max: int = 4 * 1200) -> None:
        writer = ObjectWriter(KIB)
        writer.add(1, [Entry(offset, 1, memoryview(bytes([offset]) * KIB)) for offset in range(blocks_count)])
        finished = writer.finish()
        bucket = SimBucket(SystemClock())
        bucket.put(KEY, b"".join(finished.parts))
        self.store = SimObjectStore(bucket, Rand(b"loader"), StoreFaults(latency_ms=(10, 10)))
        self.group = StreamSetGroup()
        self.loader = BlockLoader(self.group, self.store, self.store, get_bytes_max, gets_max, YieldQueue())
        self.reader = ObjectReader(self.store, KEY, finished.size_bytes)
        self.refs: list[BlockRef] = []

    async def ready(self) -> Bench:
        self.refs = await self.reader.find(1, 0, 1 << 40, 1 << 40)
        self.store.requests.clear()
        return self

    def load(self, *places: int, ahead: ReadAhead | None = None) -> list[asyncio.Future[CachedBlock]]:
        return [
            self.loader.load((OBJECT, self.refs[place].position), self.refs[place], self.reader, ahead)
            for place in places
        ]


def test_few_gets_are_under_way_at_once() -> None:
    """Twenty distant blocks with two GETs at a time take ten rounds; their room is held meanwhile, and given
    back."""

    async def main(loop: SimLoop) -> None:
        bench = await Bench(80).ready()
        began = loop.time()
        blocks = await asyncio.gather(*bench.load(*range(0, 80, 4)))
        assert [block.packed.all_entries()[0].base_offset for block in blocks] == list(range(0, 80, 4))
        assert loop.time() - began == pytest.approx(0.1)
        assert bench.group.most_reserved_bytes == 2 * bench.refs[0].size_bytes
        assert bench.group.reserved_bytes == 0
        assert bench.loader.wanted_count == 0

    run_simulation(main)


def test_what_is_wanted_meanwhile_goes_together() -> None:
    """While every GET is taken, wants gather: neighbours asked for one by one share the next GET."""

    async def main(loop: SimLoop) -> None:
        bench = await Bench().ready()
        first = bench.load(0, 20)
        await asyncio.sleep(0.001)
        later = []
        for place in (30, 31, 32, 33):
            later += bench.load(place)
            await asyncio.sleep(0.001)
        await asyncio.gather(*first, *later)
        assert bench.store.requests["get"] == 3

    run_simulation(main)


def test_read_ahead_leaves_room_for_readers_and_moves_up_for_one() -> None:
    """Read-ahead has its own, fewer GETs: a reader's block does not wait behind it, nor does one that was
    wanted ahead and is waited for now."""

    async def main(loop: SimLoop) -> None:
        bench = await Bench(40, get_bytes_max=1).ready()
        ahead = bench.load(*range(30), ahead=ReadAhead(1, 1, 1))
        await asyncio.sleep(0.001)
        began = loop.time()
        [now] = bench.load(35)
        [moved] = bench.load(29)
        assert moved is ahead[29]
        await asyncio.gather(now, moved)
        assert loop.time() - began < 0.012
        assert sum(future.done() for future in ahead) <= 2
        await asyncio.gather(*ahead)
        assert bench.store.requests["get"] == 31

    run_simulation(main)


def test_a_failed_get_fails_its_blocks_and_no_others() -> None:
    """Who waits is told; the next who wants the block asks again. Nobody waiting, nothing is said."""

    async def main(loop: SimLoop) -> None:
        bench = await Bench().ready()
        bench.store.plan("get", StoreFault.THROTTLED)
        [bad] = bench.load(0)
        await asyncio.sleep(0)
        [good] = bench.load(20)
        with pytest.raises(StoreUnavailable):
            await bad
        await good
        await bench.load(0)[0]
        bench.store.plan("get", StoreFault.THROTTLED)
        bench.load(10)
        await asyncio.sleep(1)
        gc.collect()
        assert not loop.problems
        assert bench.group.reserved_bytes == 0

    run_simulation(main)


def test_a_damaged_block_does_not_spoil_its_neighbours() -> None:
    """Of four blocks in one GET one has a flipped byte: the others are read and kept, and it is told for what
    it is."""

    async def main(loop: SimLoop) -> None:
        bench = await Bench().ready()
        bench.store.bucket.rot(KEY, bench.refs[1].position + 100)
        results = await asyncio.gather(*bench.load(0, 1, 2, 3), return_exceptions=True)
        assert [type(result) for result in results] == [CachedBlock, ObjectCorrupt, CachedBlock, CachedBlock]
        assert bench.store.requests["get"] == 1
        assert [position for _, position in bench.group.kept] == [
            bench.refs[place].position for place in (0, 2, 3)
        ]
        assert (bench.loader.wanted_count, bench.group.reserved_bytes) == (0, 0)

    run_simulation(main)


def test_closing_tells_all_who_wait() -> None:
    """Those whose GET is under way and those whose turn has not come."""

    async def main(loop: SimLoop) -> None:
        bench = await Bench(40, get_bytes_max=1).ready()
        futures = bench.load(*range(10))
        await asyncio.sleep(0.001)
        await bench.loader.close()
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(result, Closed) for result in results)
        assert (bench.loader.wanted_count, bench.group.reserved_bytes) == (0, 0)

    run_simulation(main)


class Look:
    """What the collector of garbage can see of caches: blocks, what they are charged with, and the bytes that
    they pin, each buffer once."""

    def __init__(self) -> None:
        gc.collect()
        blocks = [found for found in gc.get_objects() if type(found) is CachedBlock]
        self.count = len(blocks)
        self.charged_bytes = sum(block.packed.charge_bytes for block in blocks)
        self.foreign_bytes = sum(len(block.packed._data.obj) - len(block.packed._data) for block in blocks)
        buffers = {id(block.packed._data.obj): block.packed._data.obj for block in blocks}
        self.pinned_bytes = sum(len(buffer) for buffer in buffers.values())


def test_memory_is_flat_over_a_long_run() -> None:
    """Twenty times the cache is read through by three readers, one of them jumping: what the counters say is
    what can be found, and no more than the bound; nothing stays behind of loads, readers or reservations."""

    async def scenario() -> None:
        before = Look()
        world = World(settings={"block_bytes": 4 * KIB})
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        for number in range(1500):
            await append(stream, bytes([number % 251]) * (700 + number % 900))
        await engine.close(60_000)
        settings = StreamSettings(
            block_bytes=4 * KIB,
            read_merge_bytes=16 * KIB,
            readahead_bytes_min=8 * KIB,
            block_cache_bytes=160 * KIB,
            index_cache_bytes=8 * KIB,
        )
        cache = BlockCache(EngineStores.same(world.store), world.catalog, settings, CLUSTER_ID)
        read_bytes, places, seen = 0, [0, 700, 13], 0
        while read_bytes < 20 * settings.block_cache_bytes:
            for reader, place in enumerate(places):
                accumulator = ReadAccumulator(StreamId(1), place % 1500, 1500, 3 * KIB)
                await cache.read(accumulator)
                read_bytes += sum(len(entry.data) for entry in accumulator.entries)
                places[reader] = accumulator.next_offset if reader < 2 else place + 487
            seen += 1
            assert cache.size_bytes + cache.reserved_bytes <= settings.block_cache_bytes
            if seen % 100 == 0:
                look = Look()
                assert look.foreign_bytes == 0, "a block pins its neighbours"
                assert look.count - before.count >= len(cache._blocks)
                assert look.charged_bytes - before.charged_bytes >= cache.size_bytes
                assert look.pinned_bytes - before.pinned_bytes <= 1.2 * settings.block_cache_bytes
        await asyncio.sleep(1)
        look = Look()
        assert look.count - before.count == len(cache._blocks)
        assert look.charged_bytes - before.charged_bytes == cache.size_bytes
        assert look.pinned_bytes - before.pinned_bytes <= cache.size_bytes <= settings.block_cache_bytes
        assert cache.size_bytes == sum(charge for _, charge in cache._blocks._kept.values())
        assert (cache.reserved_bytes, cache.loader.wanted_count, len(cache._ahead)) == (0, 0, 0)
        assert len(cache._sequential) < 600
        assert cache.evicted_count > 500

    run(scenario())


def test_what_slow_readers_still_show_is_within_the_bound() -> None:
    """Replies that are not sent yet keep the memory of blocks that the cache dropped: the cache keeps so much
    less, and has it back afterwards."""

    async def scenario() -> None:
        world = World(settings={"block_bytes": 128 * KIB})
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        for number in range(64):
            await append(stream, bytes([number]) * 126 * KIB)
        await engine.close(60_000)
        settings = StreamSettings(block_cache_bytes=2 << 20, read_merge_bytes=256 * KIB)
        cache = BlockCache(EngineStores.same(world.store), world.catalog, settings, CLUSTER_ID)

        async def read(offset: int) -> list[Entry]:
            accumulator = ReadAccumulator(StreamId(1), offset, offset + 1, 1)
            await cache.read(accumulator)
            await asyncio.sleep(1)
            return accumulator.entries

        unsent = [await read(offset) for offset in range(0, 64, 2)]
        assert cache.pool.released_bytes > 1 << 20
        assert cache.size_bytes < 512 * KIB
        assert all(bytes(entry.data) == bytes([entry.base_offset]) * 126 * KIB for [entry] in unsent)
        unsent.clear()
        assert cache.pool.released_bytes == 0
        for offset in range(1, 64, 2):
            await read(offset)
        assert cache.size_bytes > 1 << 20
        assert cache.size_bytes + cache.reserved_bytes <= settings.block_cache_bytes
        [shown] = await read(63)
        cache.drop_all()
        assert cache.pool.used_bytes == cache.pool.released_bytes == buffer_size(128 * KIB)
        assert bytes(shown.data) == bytes([63]) * 126 * KIB
        kept_bytes = cache.pool.used_bytes + cache.pool.free_bytes
        assert kept_bytes <= settings.block_cache_bytes * 5 // 4

    run(scenario())
