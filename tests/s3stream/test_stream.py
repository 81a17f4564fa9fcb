"""One stream's handle: offsets, bounds, refusals, trims."""

from __future__ import annotations

import asyncio

import pytest

from millrace.runtime.errors import Closed
from millrace.s3stream.errors import OffsetBeyondEnd, OffsetTrimmed, StreamFenced
from millrace.s3stream.stream import Append, Stream
from millrace.wal.errors import WalFull
from tests.s3stream.build import World, append, open_stream, run, shown

# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_offsets_are_given_at_once_and_shown_when_durable": "asks the log cache itself",
    "test_a_trim_overtakes_a_slow_read": "cold as it is, and its read ends in a refusal",
    "test_a_closed_or_fenced_stream_refuses": "reads nothing",
    "test_trim_tells_metadata_what_is_committed": "reads nothing",
    "test_trims_of_one_stream_keep_their_order": "reads nothing",
}


def test_offsets_are_given_at_once_and_shown_when_durable() -> None:
    """`next_offset` moves with the call, `confirmed_end` with the WAL; nothing unconfirmed is readable."""

    async def scenario() -> None:
        world = World(is_auto=False)
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        made = [stream.append(count, [b"a", b"bc"]) for count in (3, 1, 5)]
        assert [(one.base_offset, one.end) for one in made] == [(0, 3), (3, 4), (4, 9)]
        assert repr(stream) == "stream 1 epoch 0 start 0 committed 0 confirmed 0 next 9"
        assert stream.read_cached(0, 9, 100) == []
        world.wal.confirm(2)
        assert (stream.confirmed_end, shown(stream.read_cached(0, 9, 100))) == (4, "[0,3)abc [3,4)abc")
        world.wal.confirm()
        assert shown(await stream.fetch(4, 9, 100)) == "[4,9)abc"
        await engine.close(1000)

    run(scenario())


def test_bounds_of_reads(tier: str) -> None:
    """Below the start is OffsetTrimmed, beyond the confirmed end OffsetBeyondEnd, at the end nothing; a far
    end is cut."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        for _ in range(4):
            await append(stream, b"x", count=5)
        await stream.trim(7)
        for read in (stream.fetch, *([cached(stream)] if tier == "hot" else [])):
            assert shown(await read(7, 1 << 40, 1)) == "[5,10)x"
            assert await read(20, 20, 100) == []
            assert await read(20, 99, 100) == []
            assert await read(9, 8, 100) == []
            with pytest.raises(OffsetTrimmed) as trimmed:
                await read(6, 20, 100)
            assert (trimmed.value.offset, trimmed.value.start) == (6, 7)
            with pytest.raises(OffsetBeyondEnd) as beyond:
                await read(21, 22, 100)
            assert (beyond.value.offset, beyond.value.end) == (21, 20)
        await engine.close(1000)

    run(scenario())


def cached(stream: Stream):  # type: ignore[no-untyped-def]
    async def read(start: int, end: int, max_bytes: int):  # type: ignore[no-untyped-def]
        return stream.read_cached(start, end, max_bytes)

    return read


@pytest.mark.parametrize("change", ["trim", "drop"])
def test_a_trim_overtakes_a_slow_read(change: str) -> None:
    """The store answers late, and meanwhile retention drops what is read, or the topic is deleted: that is
    told, not damage."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        for _ in range(3):
            await append(stream, b"x", count=5)
            assert await engine.upload_all(1000)
        engine.drop_caches()
        gate = asyncio.Event()
        world.store.fault = lambda operation, key: gate.wait() if operation == "get" else None
        reading = asyncio.ensure_future(stream.fetch(0, 15, 1000))
        await asyncio.sleep(0.01)
        if change == "trim":
            await stream.trim(15)
        else:
            world.catalog.delete(1)
            await engine.drop_streams([stream.stream_id])
        world.store.objects.clear()
        gate.set()
        with pytest.raises(OffsetTrimmed if change == "trim" else StreamFenced):
            await reading
        await engine.close(1000)

    run(scenario())


def test_a_refused_append_gives_no_offset() -> None:
    """WalFull and bad arguments leave the stream as it was; what comes next takes the offset."""

    async def scenario() -> None:
        world = World(wal_bytes=1000, is_auto=False)
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        stream.append(1, [bytes(500)])
        with pytest.raises(WalFull):
            stream.append(1, [bytes(500)])
        for count in (0, -1, 1 << 31):
            with pytest.raises(ValueError, match="out of bounds"):
                stream.append(count, [b"x"])
        assert stream.append(2, [b"y"]).base_offset == 1
        world.wal.confirm()
        assert shown(await stream.fetch(1, 3, 10)) == "[1,3)y"
        await engine.close(1000)

    run(scenario())


def test_a_closed_or_fenced_stream_refuses() -> None:
    """After close appends are Closed; after its topic is deleted everything is StreamFenced."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        first, second = open_stream(world, engine, 1), open_stream(world, engine, 2)
        await first.close()
        with pytest.raises(Closed):
            first.append(1, [b"x"])
        await engine.drop_streams([second.stream_id])
        with pytest.raises(StreamFenced):
            second.append(1, [b"x"])
        with pytest.raises(StreamFenced):
            second.read_cached(0, 0, 1)
        await engine.close(1000)

    run(scenario())


def test_trim_tells_metadata_what_is_committed() -> None:
    """A trim beyond the committed end is obeyed at once by reads, and told to metadata as far as commits go;
    the rest follows."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        for _ in range(4):
            await append(stream, b"x", count=5)
        assert await engine.upload_all(1000)
        for _ in range(4):
            await append(stream, b"y", count=5)
        await stream.trim(30)
        assert (stream.start, world.catalog.streams[1].start) == (30, 20)
        await stream.trim(10)
        assert (stream.start, world.catalog.trims) == (30, [(1, 20)])
        assert await engine.upload_all(1000)
        await asyncio.sleep(0.1)
        assert world.catalog.trims == [(1, 20), (1, 30)]
        with pytest.raises(OffsetBeyondEnd):
            await stream.trim(41)
        await stream.trim(40)
        assert await stream.fetch(40, 40, 1) == []
        await engine.close(1000)

    run(scenario())


def test_trims_of_one_stream_keep_their_order() -> None:
    """Trims that are asked for at once reach metadata one after another, and never backwards."""

    async def scenario() -> None:
        world = World()
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        for _ in range(20):
            await append(stream, b"x")
        assert await engine.upload_all(1000)
        await asyncio.gather(*(stream.trim(offset) for offset in (3, 9, 5, 12)))
        told = [offset for _, offset in world.catalog.trims]
        assert told == sorted(told)
        assert told[-1] == 12
        await engine.close(1000)

    run(scenario())


def test_close_leaves_everything_committed() -> None:
    """A stream that is closed with appends under way waits for them, uploads them and is then closed in
    metadata at its end."""

    async def scenario() -> None:
        world = World(is_auto=False)
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        done: list[Append] = []
        for _ in range(3):
            stream.append(1, [b"x"], done.append)
        closing = asyncio.create_task(stream.close())
        await asyncio.sleep(1)
        assert not closing.done()
        assert world.catalog.closed == []
        world.wal.confirm()
        await closing
        assert len(done) == 3
        assert (world.catalog.closed, world.catalog.streams[1].end) == ([1], 3)
        again = open_stream(world, engine, 1)
        assert (again.epoch, again.next_offset) == (1, 3)
        await stream.close()
        assert world.catalog.closed == [1], "a second close changes nothing"
        assert shown(await again.fetch(0, 3, 100)) == "[0,1)x [1,2)x [2,3)x"
        await engine.close(1000)

    run(scenario())
