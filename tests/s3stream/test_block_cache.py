"""Reads of history: what is asked of the store, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from millrace.runtime.errors import Closed
from millrace.runtime.objectstore import ObjectMissing, StoreUnavailable
from millrace.s3stream.block_cache import BlockCache
from millrace.s3stream.config import StreamSettings
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import ObjectHint, ObjectId
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.read_accumulator import ReadAccumulator
from millrace.s3stream.traffic import EngineStores
from tests.s3stream.build import CLUSTER_ID, World, append, open_stream, run, shown

KIB = 1024


async def stored(world: World, *uploads: int, size: int = 900, **settings: int) -> BlockCache:
    """Stream 1 in as many objects as `uploads`, each of so many one-offset entries; one entry fills a block
    of 1 KiB."""
    engine = await world.started()
    stream = open_stream(world, engine, 1)
    for count in uploads:
        for _ in range(count):
            await append(stream, b"%07d." % stream.next_offset + bytes(size))
        assert await engine.upload_all(60_000)
    await engine.close(60_000)
    world.store.calls.clear()
    values = {"block_bytes": KIB, "read_merge_bytes": 4 * KIB, "readahead_bytes_min": 2 * KIB, **settings}
    return BlockCache(EngineStores.same(world.store), world.catalog, StreamSettings(**values), CLUSTER_ID)


def world_of_small_blocks() -> World:
    return World(settings={"block_bytes": KIB})


async def read(cache: BlockCache, start: int, end: int, max_bytes: int = 1 << 20) -> str:
    accumulator = ReadAccumulator(1, start, end, max_bytes)
    await cache.read(accumulator)
    return " ".join(str(int(bytes(entry.data[:7]))) for entry in accumulator.entries)


def test_a_block_is_loaded_once_for_all_who_wait() -> None:
    """Readers of one block at one time cause one request, also when the first of them is cancelled; then it
    is cached."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 40)
        await read(cache, 30, 31)  # the index
        world.store.calls.clear()
        readers = [asyncio.create_task(read(cache, 3, 4)) for _ in range(5)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        readers[0].cancel()
        assert await asyncio.gather(*readers[1:]) == ["3"] * 4
        assert world.store.count("get") == 1
        assert await read(cache, 3, 4) == "3"
        assert world.store.count("get") == 1
        assert (cache.reads_from_objects, cache.reads_from_block_cache) == (5, 1)

    run(scenario())


def test_near_blocks_are_merged() -> None:
    """A long read takes blocks of up to 4 KiB a request; one that is cached between two that are not comes
    again, and is not taken."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 40)
        assert await read(cache, 6, 7) == "6"
        world.store.calls.clear()
        assert await read(cache, 0, 12) == " ".join(map(str, range(12)))
        assert world.store.count("get") == 3, "0-3, 4-7 with 6 again, 8-11"
        assert cache.loader.wasted_bytes == 900 + 7 + 1 + 40 + 40
        assert await read(cache, 0, 12, max_bytes=2500) == "0 1"
        assert world.store.count("get") == 3

    run(scenario())


def test_streams_of_one_object_are_read_together() -> None:
    """Reads of several streams at one time, as a fetch of many partitions makes them, share the GETs of the
    object that holds them."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        engine = await world.started()
        for stream_id in range(1, 9):
            stream = open_stream(world, engine, stream_id)
            for _ in range(3):
                await append(stream, b"%07d." % stream.next_offset + bytes(900))
        await engine.close(60_000)
        settings = StreamSettings(block_bytes=KIB, read_merge_bytes=64 * KIB)
        cache = BlockCache(EngineStores.same(world.store), world.catalog, settings, CLUSTER_ID)
        world.store.calls.clear()
        accumulators = [ReadAccumulator(stream_id, 1, 3, 1 << 20) for stream_id in range(1, 9)]
        await asyncio.gather(*(cache.read(accumulator) for accumulator in accumulators))
        assert all(
            [entry.base_offset for entry in accumulator.entries] == [1, 2] for accumulator in accumulators
        )
        assert world.store.count("get") == 2, "the index, and all blocks"
        assert cache.loader.wasted_bytes < cache.loader.get_bytes / 2

    run(scenario())


def test_a_read_spans_objects() -> None:
    """Entries come from as many objects as the range needs, without a gap."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 3, 1, 2, 5, 1, 4)
        assert await read(cache, 1, 16) == " ".join(map(str, range(1, 16)))
        assert await read(cache, 3, 5) == "3 4"

    run(scenario())


def test_a_read_of_many_cached_blocks_leaves_the_loop_to_others() -> None:
    """Also where each holds one entry, and none has to be waited for."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 200)
        expected = " ".join(map(str, range(200)))
        assert await read(cache, 0, 200) == expected
        turns, loop = 0, asyncio.get_running_loop()

        def count() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(count)

        count()
        gets = world.store.count("get")
        assert await read(cache, 0, 200) == expected
        assert world.store.count("get") == gets
        assert turns >= 200 // 32

    run(scenario())


def test_the_cache_keeps_to_its_bound() -> None:
    """Blocks beyond the bound are evicted, the least recently used first, and read again when asked for."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 60, block_cache_bytes=16 * KIB)
        for offset in range(0, 60, 2):  # nobody reads on: nothing is read ahead
            await read(cache, offset, offset + 1)
        assert cache.size_bytes <= 16 * KIB
        assert cache.evicted_count >= 15
        world.store.calls.clear()
        await read(cache, 58, 59)
        assert world.store.count("get") == 0
        await read(cache, 0, 1)
        assert world.store.count("get") == 1

    run(scenario())


def test_sequential_reads_are_read_ahead() -> None:
    """From the second read on the blocks behind are fetched before they are asked for, in fewer and larger
    requests."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 50, 50, 50, read_merge_bytes=8 * KIB, block_cache_bytes=64 * KIB)
        for offset in range(150):
            assert await read(cache, offset, 150, max_bytes=1) == str(offset)
            await asyncio.sleep(0.01)
        assert cache.reads_from_objects <= 3
        assert cache.reads_from_block_cache >= 147
        assert world.store.count("get") < 40
        assert cache.evicted_count > 50
        assert cache.unused_readahead_evicted == 0, "what was used may go"

    run(scenario())


def test_random_reads_are_not_read_ahead() -> None:
    """Jumps cost their own blocks and no more."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 60)
        for offset in (5, 40, 12, 55, 30):
            await read(cache, offset, offset + 1)
        await asyncio.sleep(1)
        assert world.store.count("get") == 1 + 5
        assert cache.readahead_bytes == 0

    run(scenario())


def test_read_ahead_backs_off_when_it_is_wasted() -> None:
    """With a cache too small for its readers, what was read ahead is evicted unused; readers pause and are
    still served."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 200, block_cache_bytes=12 * KIB, readahead_bytes_max=64 * KIB)
        for step in range(40):
            for reader in range(5):
                offset = reader * 40 + step
                assert await read(cache, offset, 200, max_bytes=1) == str(offset)
            await asyncio.sleep(0.01)
        assert cache.unused_readahead_evicted > 0
        assert cache.readahead_bytes < 100 * KIB, "each reader has given up after its first tries"

    run(scenario())


def test_an_object_that_was_replaced_is_looked_up_anew() -> None:
    """A compaction removes the object under a reader that knows its index: the catalog is asked again and the
    read succeeds."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 30)
        assert await read(cache, 0, 1) == "0"
        replace_object(world)
        cache.drop_all()
        assert await read(cache, 1, 2) == "1"
        assert await read(cache, 20, 21) == "20"

    run(scenario())


def replace_object(world: World) -> None:
    [old] = world.catalog.streams[1].objects
    new = ObjectHint(ObjectId(900), old.kind, old.size_bytes, old.start, old.end)
    world.store.objects[object_key(CLUSTER_ID, new.object_id)] = world.store.objects.pop(
        object_key(CLUSTER_ID, old.object_id)
    )
    world.catalog.streams[1].objects = [new]


def test_an_object_that_vanishes_while_it_is_read() -> None:
    """Gone between the index and the block: the read waits for metadata to name another, and goes on."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 40)
        await read(cache, 39, 40)
        objects = dict(world.store.objects)
        world.store.objects.clear()
        reading = asyncio.create_task(read(cache, 0, 1))
        await asyncio.sleep(0.1)
        assert not reading.done()
        world.store.objects.update(objects)
        assert await reading == "0"

    run(scenario())


def test_a_lost_object_is_told_after_a_bounded_time() -> None:
    """Metadata names an object that the store does not have: ObjectMissing, and other reads go on."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 3, 3)
        first = world.catalog.streams[1].objects[0]
        del world.store.objects[object_key(CLUSTER_ID, first.object_id)]
        started = asyncio.get_running_loop().time()
        with pytest.raises(ObjectMissing):
            await read(cache, 0, 1)
        assert asyncio.get_running_loop().time() - started < 5
        assert await read(cache, 3, 6) == "3 4 5"
        with pytest.raises(ObjectMissing):
            await read(cache, 99, 100)

    run(scenario())


def test_what_comes_before_a_lost_object_is_given() -> None:
    """A read that meets a lost object on its way gives what it has by then; the next read tells."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 3, 3)
        second = world.catalog.streams[1].objects[1]
        del world.store.objects[object_key(CLUSTER_ID, second.object_id)]
        assert await read(cache, 1, 6) == "1 2"
        with pytest.raises(ObjectMissing):
            await read(cache, 3, 6)

    run(scenario())


def test_a_bad_block_fails_the_reads_that_need_it() -> None:
    """A flipped byte is ObjectCorrupt with the object's key; neighbours are read, and nothing bad is
    cached."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 40)
        [key] = world.store.objects
        good = world.store.objects[key]
        world.store.objects[key] = good[:100] + bytes([good[100] ^ 1]) + good[101:]
        with pytest.raises(ObjectCorrupt) as raised:
            await read(cache, 0, 1)
        assert raised.value.key == key
        assert await read(cache, 1, 2) == "1"
        world.store.objects[key] = good
        assert await read(cache, 0, 1) == "0"

    run(scenario())


def test_a_store_that_is_away_fails_the_read_and_nothing_else() -> None:
    """The error is the reader's; the next read tries again."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 40)

        def away(operation: str, key: str) -> Coroutine[Any, Any, None] | None:
            raise StoreUnavailable

        world.store.fault = away
        with pytest.raises(StoreUnavailable):
            await read(cache, 0, 1)
        world.store.fault = lambda operation, key: None
        assert await read(cache, 0, 1) == "0"

    run(scenario())


def test_indexes_are_bounded() -> None:
    """Indexes of objects are kept by bytes; one that was dropped costs one more request."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, *[2] * 30, index_cache_bytes=20 * KIB)
        for offset in range(60):
            assert await read(cache, offset, offset + 1) == str(offset)
        world.store.calls.clear()
        cache._blocks.drop_all()
        await read(cache, 59, 60)
        assert world.store.count("get") == 0, "a small object is kept whole with its index"
        await read(cache, 0, 1)
        assert world.store.count("get") == 1
        assert cache.finder.size_bytes <= 20 * KIB

    run(scenario())


def test_close_ends_what_is_under_way() -> None:
    """Loads and read-ahead are cancelled; nobody hangs."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 40)
        never = asyncio.get_running_loop().create_future()

        async def hang() -> None:
            await never

        await read(cache, 39, 40)
        world.store.fault = lambda operation, key: hang()
        reading = asyncio.create_task(read(cache, 0, 1))
        await asyncio.sleep(0.1)
        await cache.close()
        with pytest.raises(Closed):
            await reading

    run(scenario())


def test_data_is_what_was_appended() -> None:
    """Views of cached blocks hold exactly the bytes, and `shown` names them."""

    async def scenario() -> None:
        world = world_of_small_blocks()
        cache = await stored(world, 2)
        accumulator = ReadAccumulator(1, 0, 2, 1 << 20)
        await cache.read(accumulator)
        assert shown(accumulator.entries) == "[0,1)0000000. [1,2)0000001."
        assert [len(entry.data) for entry in accumulator.entries] == [908, 908]

    run(scenario())
