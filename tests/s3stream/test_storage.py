"""The engine as a whole, on edges in memory."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable
from typing import Any

import pytest

from millrace.runtime.errors import Closed
from millrace.runtime.objectstore import StoreUnavailable
from millrace.s3stream.errors import StreamFenced
from millrace.s3stream.ids import OpenedStream, StreamId
from millrace.s3stream.log_cache import COPY_OVERHEAD_BYTES, RUN_OVERHEAD_BYTES
from millrace.s3stream.storage import Storage
from millrace.s3stream.stream import Append, Stream
from millrace.wal.errors import WalFull
from tests.s3stream.build import World, append, open_stream, run, shown

KIB = 1024
# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_upload_lag_is_the_age_of_the_oldest_entry_that_is_not_in_the_store": "reads nothing",
    "test_appends_are_read_back_from_every_tier": "compares the tiers",
    "test_history_is_joined_with_what_is_cached": "is about the log cache beside objects",
    "test_a_failed_wal_ends_everything_that_waits": "reads when uploads have ended",
    "test_what_is_evicted_is_freed_at_once": "is about the log cache",
    "test_a_group_is_told_in_order": "reads nothing",
    "test_a_stream_is_closed_while_the_wal_waits_for_its_trim": "reads while trims wait",
    "test_a_callback_that_fails_ends_the_engine": "reads nothing",
    "test_nobody_passes_those_who_wait": "reads nothing",
    "test_who_waits_forces_an_upload": "reads nothing",
    "test_what_never_fits_is_refused": "reads nothing",
    "test_a_grant_that_nobody_takes_is_passed_on": "reads nothing",
    "test_uploads_by_age_are_bounded": "reads nothing",
    "test_uploads_by_size": "reads nothing",
    "test_small_states_have_room_where_data_waits": "reads nothing",
    "test_a_wal_filled_by_padding_is_uploaded": "reads nothing",
    "test_closing_streams_share_an_upload": "reads nothing",
    "test_deleted_streams_do_not_hold_up_the_wal": "reads nothing",
    "test_close_hands_everything_over": "reads nothing",
    "test_a_stream_is_opened_once": "reads nothing",
}


def test_appends_are_read_back_from_every_tier() -> None:
    """The same entries come from the log cache, from objects and from the block cache."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        stream = open_stream(world, engine, 7)
        for number in range(5):
            await append(stream, b"v%d" % number, count=10)
        expected = "[0,10)v0 [10,20)v1 [20,30)v2 [30,40)v3 [40,50)v4"
        assert shown(await stream.fetch(0, 50, 1 << 20)) == expected
        assert await engine.upload_all(1000)
        engine.drop_caches()
        assert stream.read_cached(0, 50, 1 << 20) is None
        assert shown(await stream.fetch(0, 50, 1 << 20)) == expected
        assert shown(await stream.fetch(25, 50, 3)) == "[20,30)v2"
        blocks = engine.block_cache
        assert (engine.reads_from_log_cache, blocks.reads_from_objects, blocks.reads_from_block_cache) == (
            1,
            1,
            1,
        )
        assert world.wal.used_bytes == 0
        await engine.close(1000)
        assert world.catalog.closed == [7]

    run(scenario())


def test_history_is_joined_with_what_is_cached() -> None:
    """A read begins in objects and ends in the log cache, also when the cache moves on while the objects are
    read."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        for part in range(3):
            for number in range(4):
                await append(stream, b"%d" % (part * 4 + number))
            if part < 2:
                assert await engine.upload_all(1000)
            if part == 0:
                engine.drop_caches()
        everything = " ".join(f"[{number},{number + 1}){number}" for number in range(12))
        assert shown(await stream.fetch(0, 12, 1 << 20)) == everything
        engine.block_cache.drop_all()
        hold = asyncio.Event()
        world.store.fault = lambda operation, key: hold.wait() if operation == "get" else None
        reading = asyncio.create_task(stream.fetch(0, 12, 1 << 20))
        await asyncio.sleep(1)
        assert await engine.upload_all(1000)
        engine.drop_caches()
        await append(stream, b"later")
        hold.set()
        assert shown(await reading) == everything
        await engine.close(1000)

    run(scenario())


def test_a_group_is_told_in_order() -> None:
    """For one WAL group: every append's callback in WAL order, when all of the group is readable; then each
    stream once; then the group."""

    async def scenario() -> None:
        world = World(is_auto=False)
        engine = await world.started()
        first, second = open_stream(world, engine, 1), open_stream(world, engine, 2)
        told: list[str] = []

        def on_done(made: Append) -> None:
            told.append(f"{made.stream.stream_id}:{made.base_offset}")
            assert (first.confirmed_end, second.confirmed_end) == (2, 1)

        for stream in (first, second):
            stream.on_advance = lambda moved: told.append(f"advance {moved.stream_id}")
        engine.on_confirmed_group.append(lambda: told.append("group"))
        for stream in (second, first, first):
            stream.append(1, [b"x"], on_done)
        first.append(1, [b"y"], lambda made: told.append("last"))
        assert told == []
        world.wal.confirm(3)
        assert told == ["2:0", "1:0", "1:1", "advance 2", "advance 1", "group"]
        world.wal.confirm()
        assert told[6:] == ["last", "advance 1", "group"]
        await engine.close(1000)

    run(scenario())


def test_a_callback_may_append() -> None:
    """What a callback appends belongs to a later group."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        done = asyncio.get_running_loop().create_future()

        def again(made: Append) -> None:
            if made.end < 5:
                stream.append(1, [b"%d" % made.end], again)
            else:
                done.set_result(None)

        stream.append(1, [b"0"], again)
        await done
        assert shown(await stream.fetch(0, 5, 100)) == "[0,1)0 [1,2)1 [2,3)2 [3,4)3 [4,5)4"
        await engine.close(1000)

    run(scenario())


@pytest.mark.parametrize("place", ["done", "advance", "group"])
def test_a_callback_that_fails_ends_the_engine(place: str) -> None:
    """Whoever missed a confirmation can never be told again: `on_failed` is called once, and nothing is taken
    any more."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        stream = open_stream(world, engine, 1)

        def fail(*told: object) -> None:
            raise RuntimeError("a bug")

        if place == "advance":
            stream.on_advance = fail
        elif place == "group":
            engine.on_confirmed_group.append(fail)
        stream.append(1, [b"x"], fail if place == "done" else None)
        await asyncio.sleep(1)
        assert [str(error) for error in world.failures] == ["a bug"]
        with pytest.raises(Closed):
            stream.append(1, [b"y"])
        await engine.close(1000)

    run(scenario())


def test_a_failed_wal_ends_everything_that_waits() -> None:
    """The WAL fails: told once; appends, waits for room, closes and uploads end with Closed; what is durable
    stays readable."""

    async def scenario() -> None:
        world = World(wal_bytes=4000, is_auto=False)
        engine = await world.started()
        stream, other = open_stream(world, engine, 1), open_stream(world, engine, 2)
        world.store.fault = lambda operation, key: asyncio.sleep(1_000_000)
        stream.append(1, [bytes(500)])
        other.append(1, [bytes(500)])
        world.wal.confirm()
        stream.append(1, [bytes(1500)])
        waits: list[asyncio.Future[Any]] = [
            engine.wait_for_room(1000),
            asyncio.ensure_future(stream.close()),
            asyncio.ensure_future(other.close()),
            asyncio.ensure_future(engine.upload_all(60_000)),
        ]
        await asyncio.sleep(1)
        world.wal.fail(OSError("EIO"))
        world.wal.fail(OSError("again"))
        assert [type(ended) for ended in await asyncio.gather(*waits, return_exceptions=True)] == [Closed] * 4
        assert [str(error) for error in world.failures] == ["EIO"]
        assert engine.wait_for_room(1).exception() is not None
        with pytest.raises(Closed):
            other.append(1, [b"x"])
        assert len(await stream.fetch(0, 1, 1000)) == 1
        await engine.close(1000)

    run(scenario())


# -- room


async def produce(engine: Storage, stream: Stream, count: int, size: int, done: list[int]) -> None:
    for _ in range(count):
        if engine.room_bytes < size:
            await engine.wait_for_room(size)
        stream.append(1, [bytes(size)], lambda made: done.append(made.base_offset))


@pytest.mark.parametrize(("wal_bytes", "cache_bytes"), [(60 * KIB, 1 << 30), (1 << 30, 60 * KIB)])
def test_producers_wait_and_lose_nothing(wal_bytes: int, cache_bytes: int) -> None:
    """Ten producers write many times what WAL or cache hold, with a store that is away for an hour: all wait,
    none fails."""

    async def scenario() -> None:
        world = World(wal_bytes, settings={"log_cache_bytes": cache_bytes})
        engine = await world.started()
        streams = [open_stream(world, engine, number) for number in range(10)]
        done: list[list[int]] = [[] for _ in streams]
        away = True

        def fail(operation: str, key: str) -> None:
            if operation == "put" and away:
                raise StoreUnavailable

        world.store.fault = fail
        producers = [
            asyncio.create_task(produce(engine, stream, 40, 2000, told))
            for stream, told in zip(streams, done, strict=True)
        ]
        await asyncio.sleep(3600)
        assert not any(producer.done() for producer in producers)
        assert engine.room_bytes == 0
        assert engine.log_cache.held_bytes <= cache_bytes
        assert engine.upload_blocked_reason
        away = False
        await asyncio.gather(*producers)
        assert await engine.upload_all(60_000)
        assert done == [list(range(40))] * 10
        engine.drop_caches()
        for stream in streams:
            assert len(await stream.fetch(0, 40, 1 << 20)) == 40
        assert (world.failures, engine.upload_blocked_reason) == ([], "")
        await engine.close(60_000)

    run(scenario())


def test_nobody_passes_those_who_wait() -> None:
    """While somebody waits there is no room for others; who waits is let through in order, and the reserved
    room cannot be stolen."""

    async def scenario() -> None:
        world = World(20 * KIB)
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        order: list[str] = []

        async def ask(name: str, size: int) -> None:
            if engine.room_bytes < size:
                await engine.wait_for_room(size)
            order.append(name)
            stream.append(1, [bytes(size)])

        stream.append(1, [bytes(9000)])
        tasks = [
            asyncio.create_task(ask(name, size))
            for name, size in (("large", 5000), ("small", 10), ("middle", 1000))
        ]
        await asyncio.sleep(0)
        assert engine.room_bytes == 0
        await asyncio.gather(*tasks)
        assert order == ["large", "small", "middle"]
        assert engine.room_bytes > 0
        await engine.close(1000)

    run(scenario())


@pytest.mark.parametrize("is_auto", [True, False])
def test_who_waits_forces_an_upload(is_auto: bool) -> None:
    """What fills the room is below the threshold, or not even confirmed when somebody asks: it is uploaded
    all the same."""

    async def scenario() -> None:
        world = World(20 * KIB, is_auto=is_auto)
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        stream.append(1, [bytes(5000)])
        if is_auto:
            await asyncio.sleep(1)
        waiting = engine.wait_for_room(6000)
        await asyncio.sleep(1)
        assert waiting.done() == is_auto
        world.wal.confirm()
        await waiting
        assert asyncio.get_running_loop().time() < 10, "not by age"
        await engine.close(1000)

    run(scenario())


def test_what_never_fits_is_refused() -> None:
    """More than WAL and cache hold when they are empty would wait for ever, and hold up everybody behind:
    WalFull."""

    async def scenario() -> None:
        world = World(20 * KIB)
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        await append(stream, bytes(5000))
        huge, small = engine.wait_for_room(1 << 20), engine.wait_for_room(5000)
        with pytest.raises(WalFull):
            await huge
        await small
        await engine.close(1000)

    run(scenario())


def test_a_grant_that_nobody_takes_is_passed_on() -> None:
    """Who gave up before or after the grant does not hold up the next."""

    async def scenario() -> None:
        world = World(20 * KIB)
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        await append(stream, bytes(9000))
        waiting = [engine.wait_for_room(6000) for _ in range(3)]
        waiting[0].cancel()
        await waiting[1]
        await waiting[2]
        await engine.close(1000)

    run(scenario())


# -- uploads


def test_uploads_by_age_are_bounded() -> None:
    """At a low rate there is one upload an interval, however many appends; without appends there is none."""

    async def scenario() -> None:
        world = World()
        engine = await world.started(upload_interval_ms=60_000)
        stream = open_stream(world, engine, 1)
        for _ in range(600):
            await append(stream, b"x")
            await asyncio.sleep(1)
        assert 9 <= len(world.catalog.commits) <= 10
        await asyncio.sleep(3600)
        assert 10 <= len(world.catalog.commits) <= 11
        assert world.wal.used_bytes == 0
        await engine.close(1000)

    run(scenario())


def test_upload_lag_is_the_age_of_the_oldest_entry_that_is_not_in_the_store() -> None:
    """It grows from the first entry on, beyond when an upload is due while the store is away; once the first
    block is committed it is the age of what came meanwhile, and 0 when all is committed."""

    async def scenario() -> None:
        world = World()
        engine = await world.started(upload_interval_ms=60_000)
        assert engine.upload_lag_s == 0
        first, second = (open_stream(world, engine, stream_id) for stream_id in (1, 2))
        is_away = True

        def fault(operation: str, key: str) -> Awaitable[Any] | None:
            if is_away and operation.startswith("put"):
                raise StoreUnavailable(key, "503")
            return None

        world.store.fault = fault
        await append(first, b"oldest")
        await asyncio.sleep(30)
        await append(second, b"in the same block")
        assert 30 <= engine.upload_lag_s < 31
        await asyncio.sleep(570)
        assert 600 <= engine.upload_lag_s < 602
        await append(first, b"in the next block")
        is_away = False
        await asyncio.sleep(20)
        assert 20 <= engine.upload_lag_s < 22
        await asyncio.sleep(60)
        assert engine.upload_lag_s == 0
        await engine.close(1000)

    run(scenario())


def test_uploads_by_size() -> None:
    """A block is sealed at the threshold: few objects, and what waits for upload stays near it."""

    async def scenario() -> None:
        world = World()
        engine = await world.started(upload_threshold_bytes=100 * KIB)
        stream = open_stream(world, engine, 1)
        for _ in range(400):
            await append(stream, bytes(5000))
        await asyncio.sleep(1)
        sealed = 400 // -(-(100 * KIB - RUN_OVERHEAD_BYTES) // (5000 + COPY_OVERHEAD_BYTES))
        assert sealed - 1 <= len(world.catalog.commits) <= sealed
        await engine.close(1000)

    run(scenario())


def test_small_states_have_room_where_data_waits() -> None:
    """The store is away and data waits for room: a small state is taken before it, as often as what is kept
    for states lasts; then it waits too, and has its turn before data when the store is back."""

    async def scenario() -> None:
        world = World(wal_bytes=1024 * KIB)
        away = asyncio.Event()
        world.store.fault = lambda operation, key: away.wait() if operation == "put" else None
        engine = await world.started()
        data, states = open_stream(world, engine, 1), open_stream(world, engine, 2)
        while engine.room_bytes >= 4000:
            await append(data, bytes(4000))
        waiting = engine.wait_for_room(4000)
        await asyncio.sleep(1)
        assert engine.room_bytes == 0
        taken = 0
        while engine.state_room.room_bytes >= 1000:
            states.append(1, [bytes(1000)])
            taken += 1
        assert 5 < taken < 200
        order: list[str] = []
        waiting.add_done_callback(lambda _: order.append("data"))
        engine.state_room.wait_for_room(1000).add_done_callback(lambda _: order.append("state"))
        await asyncio.sleep(60)
        assert order == []
        away.set()
        await asyncio.sleep(60)
        assert order == ["state", "data"]
        await engine.close(1000)

    run(scenario())


def test_a_wal_filled_by_padding_is_uploaded() -> None:
    """Small records that each take a block of the WAL fill it long before the cache: a third of it is enough
    for an upload."""

    async def scenario() -> None:
        world = World(wal_bytes=100 * KIB)
        world.wal.record_bytes_min = 4096
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        for _ in range(100):
            if engine.room_bytes < 10:
                await engine.wait_for_room(10)
            await append(stream, bytes(10))
        assert 8 <= len(world.catalog.commits) <= 12
        await engine.close(1000)

    run(scenario())


def test_closing_streams_share_an_upload() -> None:
    """Two hundred streams that close together cost one or two objects."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        streams = [open_stream(world, engine, number) for number in range(200)]
        for stream in streams:
            stream.append(1, [b"x"])
        await asyncio.gather(*(stream.close() for stream in streams))
        assert len(world.catalog.commits) <= 2
        assert len(world.catalog.closed) == 200
        await engine.close(1000)

    run(scenario())


def test_deleted_streams_do_not_hold_up_the_wal() -> None:
    """Entries of a deleted topic, confirmed or under way, are given up; their place in the WAL is freed with
    what is beside them."""

    async def scenario() -> None:
        world = World(is_auto=False)
        engine = await world.started()
        kept, gone = open_stream(world, engine, 1), open_stream(world, engine, 2)
        done: list[Append] = []
        for stream in (gone, kept, gone):
            stream.append(1, [b"x"], done.append)
        world.wal.confirm()
        gone.append(1, [b"late"], done.append)
        world.catalog.delete(2)
        await engine.drop_streams([gone.stream_id, StreamId(77)])
        world.wal.confirm()
        assert len(done) == 4
        assert await engine.upload_all(1000)
        assert world.wal.used_bytes == 0
        assert [span.stream_id for commit in world.catalog.commits for span in commit.ranges] == [1]
        with pytest.raises(StreamFenced):
            await gone.fetch(0, 1, 1)
        await engine.close(1000)

    run(scenario())


# -- life


def test_close_hands_everything_over() -> None:
    """After a stop in time the WAL is empty, every stream is closed at its end, and the next start has
    nothing to do."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        streams = [open_stream(world, engine, number) for number in range(3)]
        for stream in streams[:2]:
            stream.append(5, [b"x"])
        await asyncio.sleep(0)
        await streams[0].trim(2)
        await engine.close(10_000)
        assert (world.wal.used_bytes, world.wal.is_closed) == (0, True)
        assert sorted(world.catalog.closed) == [0, 1, 2]
        assert [world.catalog.streams[number].end for number in range(3)] == [5, 5, 0]
        assert world.catalog.streams[0].start == 2
        with pytest.raises(Closed):
            streams[0].append(1, [b"y"])
        await engine.close(10_000)
        world.wal = world.wal.crash()
        engine = await world.started()
        assert engine.recovered.accepted_count == 0
        await engine.close(1000)

    run(scenario())


def test_close_keeps_to_its_time() -> None:
    """With a store that is away the stop ends in time; whole streams are closed, the others stay open, and
    the WAL has their entries."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        whole, half = open_stream(world, engine, 1), open_stream(world, engine, 2)
        await append(whole, b"x")
        assert await engine.upload_all(1000)
        await append(half, b"y")
        waiting = engine.wait_for_room(1 << 40)

        def hang(operation: str, key: str) -> Awaitable[Any] | None:
            return asyncio.sleep(1_000_000) if operation == "put" else None

        world.store.fault = hang
        before = asyncio.get_running_loop().time()
        await engine.close(5000)
        assert asyncio.get_running_loop().time() - before < 6
        assert isinstance(waiting.exception(), WalFull | Closed)
        assert world.catalog.closed == [1]
        world.wal = world.wal.crash()
        world.store.fault = lambda operation, key: None
        engine = await world.started()
        assert engine.recovered.accepted_count == 1
        stream = open_stream(world, engine, 2)
        engine.drop_caches()
        assert shown(await stream.fetch(0, 1, 10)) == "[0,1)y"
        await engine.close(1000)

    run(scenario())


def test_a_stream_that_comes_back() -> None:
    """Another node owned the stream meanwhile and wrote: what the log cache kept of the old epoch ends before
    the new offsets, and goes."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        await append(stream, b"old", count=5)
        await stream.close()
        other = World(settings={})
        other.store, other.catalog = world.store, world.catalog
        elsewhere = await other.started()
        theirs = open_stream(other, elsewhere, 1)
        await append(theirs, b"theirs", count=3)
        await theirs.close()
        stream = open_stream(world, engine, 1)
        assert (stream.epoch, stream.next_offset) == (2, 8)
        await append(stream, b"new")
        assert shown(await stream.fetch(0, 9, 100)) == "[0,5)old [5,8)theirs [8,9)new"
        await elsewhere.close(1000)
        await engine.close(1000)

    run(scenario())


def test_a_stream_is_closed_while_the_wal_waits_for_its_trim() -> None:
    """All of it is committed; the bucket that is to have the metadata before the log is trimmed is slow. Who
    is to lead the partition next does not wait for that, and it may come back before."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        is_safe = asyncio.Event()

        async def wait_safe() -> None:
            await is_safe.wait()

        engine.uploader._before_trim = wait_safe
        stream, idle = open_stream(world, engine, 1), open_stream(world, engine, 2)
        await append(stream, b"old", count=5)
        await append(idle, b"kept")
        await stream.close()
        assert world.catalog.streams[1].end == 5
        assert not world.catalog.streams[1].is_open
        assert (world.wal.trims, idle.committed_end) == (0, 1)
        assert engine.log_cache.held_bytes > 0, "the log's memory is not given back before the trim"
        other = World(settings={})
        other.store, other.catalog = world.store, world.catalog
        elsewhere = await other.started()
        theirs = open_stream(other, elsewhere, 1)
        await append(theirs, b"theirs", count=3)
        await theirs.close()
        stream = open_stream(world, engine, 1)
        await append(stream, b"new")
        assert shown(await stream.fetch(0, 9, 100)) == "[0,5)old [5,8)theirs [8,9)new"
        is_safe.set()
        await elsewhere.close(1000)
        await engine.close(1000)
        assert world.wal.used_bytes == 0

    run(scenario())


def test_a_crash_between_a_close_and_the_trim_loses_nothing() -> None:
    """The log holds records of a stream that is closed, or another's by now: they are committed, and
    dropped."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        engine.uploader._before_trim = asyncio.Event().wait  # type: ignore[assignment]
        stream = open_stream(world, engine, 1)
        await append(stream, b"old", count=5)
        await stream.close()
        await world.crash(engine)
        engine = await world.started()
        assert (engine.recovered.unknown_count, engine.recovered.accepted_count) == (1, 0)
        stream = open_stream(world, engine, 1)
        assert shown(await stream.fetch(0, 9, 100)) == "[0,5)old"
        await engine.close(1000)

    run(scenario())


def test_a_stream_is_opened_once() -> None:
    """A second handle on an open stream would give its offsets twice."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        with pytest.raises(AssertionError):
            engine.open_stream(OpenedStream(stream.stream_id, 1, 0, 0))
        await engine.close(1000)

    run(scenario())


def test_memory_is_bounded_by_the_settings() -> None:
    """However much is written and read, caches and what waits stay within their parts."""

    async def scenario() -> None:
        world = World(
            settings={
                "log_cache_bytes": 200 * KIB,
                "block_cache_bytes": 100 * KIB,
                "block_bytes": 8 * KIB,
                "read_merge_bytes": 16 * KIB,
            }
        )
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        done: list[int] = []
        producer = asyncio.create_task(produce(engine, stream, 500, 3000, done))
        offset = 0
        while offset < 500:
            await asyncio.sleep(0)
            for entry in await stream.fetch(offset, 500, 20_000):
                offset = entry.end
            assert engine.log_cache.size_bytes <= 210 * KIB
            assert engine.block_cache.size_bytes <= 100 * KIB
        await producer
        for offset in range(0, 500, 7):
            await stream.fetch(offset, 500, 20_000)
            assert engine.block_cache.size_bytes <= 100 * KIB
        await engine.close(1000)

    run(scenario())


def test_what_is_evicted_is_freed_at_once() -> None:
    """No cycle and no waiting task keeps the entries of an evicted block: their views pin the WAL's memory,
    which is large."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        streams = [open_stream(world, engine, number) for number in range(3)]
        for stream in streams:
            await append(stream, bytes(5000))
            assert engine.read_cached(stream.stream_id, 0, 1, 0)
        runs = [weakref.ref(run) for run in engine.log_cache.active.runs.values()]
        assert await engine.upload_all(1000)
        await asyncio.sleep(1)
        assert all(run() is not None for run in runs)
        engine.drop_caches()
        assert [run() for run in runs] == [None] * 3
        await engine.close(1000)

    gc.disable()
    try:
        run(scenario())
    finally:
        gc.enable()
