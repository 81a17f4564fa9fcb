"""Streams that a process that was killed had open: the next one serves before metadata has them closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from millrace.s3stream.ids import StreamId
from millrace.s3stream.left_open import CLOSED_AT_ONCE
from millrace.s3stream.recovery import CLOSED_AT_START_MAX
from millrace.s3stream.storage import Storage
from tests.s3stream.build import World, append, run

# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_a_start_waits_for_a_few_streams_alone": "reads nothing",
    "test_what_is_left_is_closed_while_the_engine_serves": "reads nothing",
    "test_who_opens_a_stream_that_was_left_keeps_it": "reads nothing",
    "test_who_comes_while_a_stream_is_closed_waits_for_that": "reads nothing",
    "test_what_was_taken_and_not_opened_is_closed": "reads nothing",
    "test_a_stop_closes_what_is_left": "reads nothing",
    "test_a_crash_meanwhile_leaves_the_rest_to_the_next_start": "reads nothing",
    "test_a_failure_ends_the_engine": "reads nothing",
}
MANY = CLOSED_AT_START_MAX + 1


async def crashed(count: int) -> World:
    """So many streams were open, and the first took an entry."""
    world = World()
    engine = await world.started()
    streams = [engine.open_stream(world.catalog.open(stream_id)) for stream_id in range(count)]
    await append(streams[0], b"acknowledged")
    await world.crash(engine)
    return world


async def started(world: World) -> Storage:
    engine = world.engine()
    await engine.start(may_leave_open=True)
    return engine


def open_count(world: World) -> int:
    return sum(stream.is_open for stream in world.catalog.streams.values())


def gate_closes(world: World) -> tuple[asyncio.Future[None], list[str]]:
    """Closes wait for the future; what was asked, by verb."""
    gate, asked = asyncio.get_running_loop().create_future(), list[str]()

    def hold(verb: str) -> Awaitable[None] | None:
        asked.append(verb)
        return asyncio.shield(gate) if verb == "close" else None

    world.catalog.before = hold
    return gate, asked


@pytest.mark.parametrize(("count", "left_count"), [(CLOSED_AT_START_MAX, 0), (MANY, MANY)])
def test_a_start_waits_for_a_few_streams_alone(count: int, left_count: int) -> None:
    """Beyond a bound it waits for none; without the caller's leave, as of a log that is recovered for another
    node, always for all."""

    async def scenario() -> None:
        world = await crashed(count)
        engine = await started(world)
        assert (open_count(world), len(engine.left_open)) == (left_count, left_count)
        assert engine.recovered.closed_count == count - left_count
        assert world.catalog.streams[0].end == 1, "what was acknowledged is committed"
        assert world.wal.used_bytes == 0
        await engine.close(1000)
        world = await crashed(count)
        engine = await world.started()
        assert (open_count(world), engine.recovered.closed_count) == (0, count)
        await engine.close(1000)

    run(scenario())


def test_what_is_left_is_closed_while_the_engine_serves() -> None:
    """Some at a time, and all in the end."""

    async def scenario() -> None:
        world = await crashed(MANY)
        gate, asked = gate_closes(world)
        engine = await started(world)
        await asyncio.sleep(60)
        assert asked.count("close") == CLOSED_AT_ONCE
        stream = engine.open_stream(world.catalog.open(MANY + 7))
        await append(stream, b"served")
        gate.set_result(None)
        await asyncio.sleep(60)
        assert (open_count(world), len(engine.left_open)) == (1, 0)
        assert sorted(world.catalog.closed) == list(range(MANY))
        await engine.close(1000)

    run(scenario())


def test_who_opens_a_stream_that_was_left_keeps_it() -> None:
    """It is not closed any more from elsewhere: a close of the same epoch would take it from who has opened
    it since."""

    async def scenario() -> None:
        world = await crashed(MANY)
        gate, _ = gate_closes(world)
        engine = await started(world)
        await asyncio.sleep(1)
        last = StreamId(MANY - 1)
        assert await engine.left_open.take([last, StreamId(999_999)]) == {last: 0}
        gate.set_result(None)
        await asyncio.sleep(60)
        assert [one for one, stream in world.catalog.streams.items() if stream.is_open] == [last]
        await engine.close(1000)

    run(scenario())


def test_who_comes_while_a_stream_is_closed_waits_for_that() -> None:
    """Its close is on its way, and may be decided after the opening that follows."""

    async def scenario() -> None:
        world = await crashed(MANY)
        gate, _ = gate_closes(world)
        engine = await started(world)
        await asyncio.sleep(1)
        taking = asyncio.create_task(engine.left_open.take([StreamId(0)]))
        await asyncio.sleep(60)
        assert not taking.done()
        gate.set_result(None)
        assert await taking == {}
        assert not world.catalog.streams[0].is_open
        await engine.close(1000)

    run(scenario())


@pytest.mark.parametrize("is_over", [False, True], ids=["others are left", "all others are closed"])
def test_what_was_taken_and_not_opened_is_closed(is_over: bool) -> None:
    """The opening was refused, say: else nobody would close it, and its next leader would wait for ever."""

    async def scenario() -> None:
        world = await crashed(MANY)
        engine = await started(world)
        last = StreamId(MANY - 1)
        taken = await engine.left_open.take([last])
        if is_over:
            await asyncio.sleep(60)
            assert open_count(world) == 1
        engine.left_open.give_back(taken)
        await asyncio.sleep(60)
        assert open_count(world) == 0
        await engine.close(1000)

    run(scenario())


def test_a_stop_closes_what_is_left() -> None:
    """Those that are being closed with them."""

    async def scenario() -> None:
        world = await crashed(MANY)
        gate_closes(world)
        engine = await started(world)
        await asyncio.sleep(1)
        world.catalog.before = lambda verb: None
        await engine.close(1000)
        assert (open_count(world), len(engine.left_open)) == (0, 0)

    run(scenario())


def test_a_crash_meanwhile_leaves_the_rest_to_the_next_start() -> None:
    """Killed after some were closed: the next start finds those that were not, and nothing else to
    recover."""

    async def scenario() -> None:
        world = await crashed(MANY)
        count = 0

        def hang(verb: str) -> Awaitable[None] | None:
            nonlocal count
            count += verb == "close"
            return asyncio.sleep(1_000_000) if count > CLOSED_AT_ONCE else None

        world.catalog.before = hang
        engine = await started(world)
        await asyncio.sleep(60)
        assert open_count(world) == MANY - CLOSED_AT_ONCE
        await world.crash(engine)
        world.catalog.before = lambda verb: None
        engine = await started(world)
        assert (engine.recovered.accepted_count, open_count(world)) == (0, 0)
        assert engine.recovered.closed_count == MANY - CLOSED_AT_ONCE
        await engine.close(1000)

    run(scenario())


def test_a_failure_ends_the_engine() -> None:
    """What is no refusal of a stream: nobody would close the rest."""

    async def scenario() -> None:
        world = await crashed(MANY)

        def fail(verb: str) -> None:
            if verb == "close":
                raise AssertionError("planted")

        world.catalog.before = fail
        engine = await started(world)
        await asyncio.sleep(1)
        assert [str(error) for error in world.failures] == ["planted"]
        world.failures.clear()
        await engine.close(1000)

    run(scenario())
