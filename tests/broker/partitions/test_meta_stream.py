"""The meta stream: what lives, what is written again, what a crash leaves."""

from __future__ import annotations

import asyncio
import random

import pytest

from millrace.broker.partitions.meta_stream import REWRITE_BYTES_MIN, REWRITE_RATIO, MetaCorrupt, MetaStream
from millrace.s3stream.ids import StreamId, StreamRange
from tests.broker.partitions.build import Fixture, run
from tests.s3stream.build import World, open_stream

# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_callbacks_come_when_values_are_durable_and_in_order": "reads nothing",
}


def opened(fixture: Fixture, stream_id: int = 1) -> MetaStream:
    return MetaStream(open_stream(fixture.world, fixture.engine, stream_id), fixture.engine, fixture.spawn)


async def reloaded(fixture: Fixture) -> MetaStream:
    await fixture.crash()
    meta = opened(fixture)
    await meta.load()
    return meta


async def read_again(fixture: Fixture, meta: MetaStream) -> MetaStream:
    """What the stream itself holds from its start on, as the next owner would read it."""
    again = MetaStream(meta.stream, fixture.engine, fixture.spawn)
    await again.load()
    return again


def shown(meta: MetaStream) -> dict[tuple[int, int], bytes]:
    return dict(sorted(meta._live.items()))


def test_values_that_were_given_up_leave_those_before() -> None:
    """A log that owed the end of the stream is lost: what was put before lives, and what comes behind."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        meta = opened(fixture)
        meta.put({(1, 0): b"a", (2, 0): b"b"})
        await fixture.settle()
        assert await fixture.engine.upload_all(1000)
        meta.put({(1, 0): b"lost"})
        await fixture.settle()
        await fixture.crash()
        fixture.world.catalog.lost.append(StreamRange(StreamId(1), 1, 2))
        fixture.engine.drop_caches()
        meta = opened(fixture)
        await meta.load()
        assert shown(meta) == {(1, 0): b"a", (2, 0): b"b"}
        meta.put({(2, 0): b"c"})
        await fixture.settle()
        assert shown(await reloaded(fixture)) == {(1, 0): b"a", (2, 0): b"c"}

    run(scenario())


def test_the_last_value_of_a_key_lives() -> None:
    """Values, later values and removals come back after a crash as they were submitted."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        meta = opened(fixture)
        meta.put({(1, 0): b"a", (5, 7): b"x", (5, 9): b""})
        meta.put({(1, 0): b"b", (5, 7): None})
        await fixture.settle()
        expected = {(1, 0): b"b", (5, 9): b""}
        assert shown(meta) == expected
        again = await reloaded(fixture)
        assert shown(again) == expected
        assert again.of_kind(5) == {9: b""}
        assert repr(again) == "meta stream 1: 2 keys, 27 of 84 bytes live"

    run(scenario())


def test_callbacks_come_when_values_are_durable_and_in_order() -> None:
    """Nothing is told before the WAL has it."""

    async def scenario() -> None:
        fixture = await Fixture(World(is_auto=False)).start()
        meta, told = opened(fixture), []
        meta.put({(1, 0): b"a"}, lambda: told.append("a"))
        meta.put({(1, 0): b"b"}, lambda: told.append("b"))
        await asyncio.sleep(0)
        assert told == []
        fixture.world.wal.confirm(1)
        assert told == ["a"]
        fixture.world.wal.confirm()
        assert told == ["a", "b"]

    run(scenario())


def test_the_stream_stays_a_few_times_what_lives() -> None:
    """However often values change, the stream is cut to where its last rewriting began, and nothing that
    lives is lost."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        meta = opened(fixture)
        meta.put({(9, 0): b"written once"})
        for number in range(400):
            meta.put({(1, number % 3): b"%d" % number * 400})
            await fixture.settle()
            bound = REWRITE_BYTES_MIN + REWRITE_RATIO * meta.live_bytes
            assert meta.written_bytes <= bound + 3000
            assert shown(await read_again(fixture, meta)) == shown(meta)
        assert meta.stream.start > 300
        assert meta.get((9, 0)) == b"written once"

    run(scenario())


def test_a_rewriting_never_overtakes_a_value_in_flight() -> None:
    """Values submitted while others are not durable yet are what is written again: after any crash the newest
    durable one wins."""

    async def scenario() -> None:
        for survivors in range(0, 60, 7):
            fixture = await Fixture(World(is_auto=False)).start()
            meta = opened(fixture)
            for number in range(200):
                meta.put({(1, 0): b"%d" % number * 500, (2, 0): b"%d" % number})
                if number == 100:
                    fixture.world.wal.confirm()
                    await asyncio.sleep(0)
            await fixture.crash(unconfirmed_count=survivors)
            again = opened(fixture)
            await again.load()
            value = again.get((2, 0))
            assert value is not None
            assert again.get((1, 0)) == value * 500
            assert int(value) >= 100

    run(scenario())


def test_puts_wait_for_room_and_write_what_lives_by_then() -> None:
    """Without room a put waits; what is put meanwhile rides in the same entry, and all are told when that is
    durable."""

    async def scenario() -> None:
        fixture = await Fixture(World(wal_bytes=200_000), upload_threshold_bytes=10**9).start()
        meta, told = opened(fixture), []
        filler = open_stream(fixture.world, fixture.engine, 2)
        while fixture.engine.room_bytes > 2000:
            filler.append(1, [b"f" * min(4096, fixture.engine.room_bytes - 1000)])
        meta.put({(1, 0): b"a" * 3000}, lambda: told.append(1))
        meta.put({(1, 0): b"b" * 3000, (2, 0): b"c"}, lambda: told.append(2))
        assert meta.stream.next_offset == 0
        while told != [1, 2]:  # noqa: ASYNC110  an upload makes room
            await asyncio.sleep(0)
        assert meta.stream.next_offset == 1
        again = await reloaded(fixture)
        assert shown(again) == {(1, 0): b"b" * 3000, (2, 0): b"c"}

    run(scenario())


@pytest.mark.parametrize(
    "data", [b"", b"MRMV\x02\0\0\0", b"MRMV\x01\0\0\x01\x05", b"MRMV\x01\0\0\x00x", b"nonsense"]
)
def test_bytes_that_are_no_entry_are_corrupt(data: bytes) -> None:
    """A meta stream with an entry that cannot be read refuses to load, rather than lose a key in silence."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        meta = opened(fixture)
        meta.stream.append(1, [data])
        await fixture.settle()
        with pytest.raises(MetaCorrupt):
            await meta.load()

    run(scenario())


@pytest.mark.parametrize("seed", range(8))
def test_any_history_comes_back(seed: int) -> None:
    """Random puts, confirmations and crashes: what is found is exactly one of the states that were submitted
    since the last one known durable."""

    async def scenario() -> None:
        chance = random.Random(seed)
        fixture = await Fixture(World(is_auto=False)).start()
        meta = opened(fixture)
        for _ in range(4):
            states = [shown(meta)]
            for _ in range(chance.randrange(60)):
                keys = [(chance.randrange(3), chance.randrange(4)) for _ in range(chance.randrange(1, 4))]
                meta.put({key: chance.choice([None, b"x" * chance.randrange(4000)]) for key in keys})
                states.append(shown(meta))
                if chance.random() < 0.2:
                    fixture.world.wal.confirm()
                    await asyncio.sleep(0)
                    while fixture.tasks:
                        await fixture.tasks.pop()
                    states = states[-1:]
                    assert shown(await read_again(fixture, meta)) == states[0]
                    await fixture.engine.upload_all(1000)
            await fixture.crash(unconfirmed_count=chance.randrange(30))
            meta = opened(fixture)
            await meta.load()
            assert shown(meta) in states

    run(scenario())
