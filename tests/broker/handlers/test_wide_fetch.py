"""Fetches and sessions over so many partitions that they are read in chunks: how much in one turn of the
loop, and that nothing is missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millrace.broker.handlers.fetch import Fetch
from millrace.broker.requests.fetch_machine import FetchState
from millrace.broker.requests.fetch_sessions import FetchItem, FetchSessions
from millrace.broker.requests.read_pass import ITEMS_PER_CHUNK, ReadPass
from millrace.broker.requests.request import ConnectionInfo
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.broker_fixture import BrokerFixture, fetch_request, parts_of
from tests.broker.partitions.build import batch, run
from tests.patience import PATIENCE_S

WIDTH = 2 * ITEMS_PER_CHUNK + 100
WANTED = {("a", index): 0 for index in range(WIDTH)}
HOT_ONLY: dict[str, str] = dict.fromkeys(
    (
        "test_a_wide_fetch_that_waits_never_reads_all_in_one_turn",
        "test_a_session_in_which_much_changed_is_read_in_chunks",
        "test_what_is_left_of_a_wide_fetch_that_failed_goes_in_chunks",
    ),
    "iterations of the loop are counted, and reads from objects are not among them",
) | {
    "test_a_wide_fetch_with_cold_partitions_is_delayed_for_what_is_missing": "cold as far as it is",
    "test_reads_of_objects_are_shared_between_addresses": "cold as it is",
}


@asynccontextmanager
async def reads_per_iteration(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[int]]:
    """How many partitions were read in each iteration of the loop."""
    counts = [0]
    read_item = ReadPass._read_item

    def counted(read_pass: ReadPass, item: FetchItem) -> None:
        counts[-1] += 1
        read_item(read_pass, item)

    async def turn() -> None:
        while True:
            await asyncio.sleep(0)
            counts.append(0)

    monkeypatch.setattr(ReadPass, "_read_item", counted)
    turning = asyncio.ensure_future(turn())
    yield counts
    turning.cancel()


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never was")


async def filled() -> BrokerFixture:
    """A record in each of very many partitions."""
    fixture = await BrokerFixture().start()
    fixture.make_topic("a", WIDTH)
    await fixture.produce(dict.fromkeys(WANTED, batch(1)))
    return fixture


async def asked(fixture: BrokerFixture, wanted: dict[tuple[str, int], int], **fields: Any) -> Any:
    return await fixture.fetch(wanted, 12, **fields)


def test_a_wide_fetch_that_waits_never_reads_all_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has something of all its partitions and waits for more: what comes while it reads counts, what comes
    then wakes it, and each time it reads in chunks."""

    async def scenario() -> None:
        fixture = await filled()
        size = len(batch(1))
        fields = {"max_wait_ms": 600_000, "min_bytes": (WIDTH + 2) * size, "max_bytes": 1 << 30}
        async with reads_per_iteration(monkeypatch) as counts:
            outcome = asyncio.ensure_future(asked(fixture, WANTED, **fields))
            await until(lambda: sum(counts) >= ITEMS_PER_CHUNK)
            await fixture.produce({("a", 0): batch(1)})  # was read
            assert sum(counts) < WIDTH
            await until(lambda: sum(counts) >= WIDTH)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not outcome.done()
            assert sum(counts) == WIDTH
            await fixture.produce({("a", WIDTH - 1): batch(1)})
            parts = parts_of(await outcome)
        assert max(counts) <= ITEMS_PER_CHUNK
        found = [sum(len(piece) for piece in (part.records,)) for part in parts.values()]
        assert found == [2 * size, *[size] * (WIDTH - 2), 2 * size]

    run(scenario())


def test_a_session_in_which_much_changed_is_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its increment names nothing; the answer has all that is new, once."""

    async def scenario() -> None:
        fixture = await filled()
        opened = await asked(fixture, WANTED, session_epoch=0, max_bytes=1 << 30)
        assert opened.session_id
        await asked(
            fixture,
            dict.fromkeys(WANTED, 1),
            session_id=opened.session_id,
            session_epoch=1,
            max_bytes=1 << 30,
        )
        await fixture.produce(dict.fromkeys(WANTED, batch(1)))
        async with reads_per_iteration(monkeypatch) as counts:
            news = await asked(fixture, {}, session_id=opened.session_id, session_epoch=2, max_bytes=1 << 30)
        assert list(parts_of(news)) == list(WANTED)
        assert max(counts) <= ITEMS_PER_CHUNK
        assert sum(counts) == WIDTH

    run(scenario())


def test_what_is_left_of_a_wide_fetch_that_failed_goes_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No partition tells it any more, and no turn ends the subscriptions of more than a chunk."""

    async def scenario() -> None:
        fixture = await filled()
        fixture.fetch_handler = Fetch(
            fixture.directory, fixture.cache, FetchSessions(iter(range(1, 9)).__next__), YieldQueue()
        )
        async with reads_per_iteration(monkeypatch) as counts:
            outcome = asyncio.ensure_future(
                asked(fixture, WANTED, max_wait_ms=600_000, min_bytes=1 << 30, max_bytes=1 << 30)
            )
            await until(lambda: sum(counts) >= 2 * ITEMS_PER_CHUNK)
            outcome.cancel()
            left = []
            while (count := watched(fixture)) or not left:
                left.append(count)
                await asyncio.sleep(0)
        assert (
            max(before - after for before, after in zip(left, [*left[1:], 0], strict=True)) <= ITEMS_PER_CHUNK
        )

    run(scenario())


def watched(fixture: BrokerFixture) -> int:
    led = fixture.directory.topic_named("a")
    assert led is not None
    return sum(len(partition.subscriptions) for partition in led.partitions.values())


def test_a_wide_fetch_with_cold_partitions_is_delayed_for_what_is_missing() -> None:
    """What comes during its passes, or while it reads from objects, is not waited for again; with less it is
    delayed, and reads nothing meanwhile."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", WIDTH)
        await fixture.produce({("a", 0): batch(2)})
        assert await fixture.engine.upload_all(1000)
        fixture.engine.drop_caches()
        await fixture.fetch(
            {("a", index): 0 for index in range(1, WIDTH)}, min_bytes=0, max_wait_ms=1
        )  # opens them
        gate = asyncio.Event()

        async def wait() -> None:
            await gate.wait()

        fixture.world.store.fault = lambda operation, key: wait()
        request = fetch_request(WANTED, 12, min_bytes=3 * len(batch(2)), max_wait_ms=600_000)
        outcome = asyncio.ensure_future(
            fixture.finish(fixture.begin(fixture.fetch_handler, 1, 12, request), 1, 12)
        )
        await until(lambda: any(one.machine.state is FetchState.REMOTE_READ for one in purgatory(fixture)))
        await fixture.produce({("a", 1): batch(2)})
        gate.set()
        await until(lambda: purgatory(fixture)[0].machine.state is not FetchState.REMOTE_READ)
        assert purgatory(fixture)[0].machine.state is FetchState.DELAYED
        await fixture.produce({("a", 2): batch(2)})
        async with asyncio.timeout(PATIENCE_S):
            parts = parts_of(await outcome)
        assert [key[1] for key, part in parts.items() if part.records] == [0, 1, 2]

    run(scenario())


def purgatory(fixture: BrokerFixture) -> list[Any]:
    return list(fixture.connection.purgatory.values())


def test_reads_of_objects_are_shared_between_addresses() -> None:
    """Two hundred connections of one address wait for objects, and 64 of them are read at once; another
    address's Fetch is read when the first of them were, not behind all."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        count = 200
        fixture.make_topic("a", count + 1)
        await fixture.produce({("a", index): batch(2) for index in range(count + 1)})
        assert await fixture.engine.upload_all(1000)
        fixture.engine.drop_caches()
        gate, order = asyncio.Event(), list[int]()

        async def wait() -> None:
            await gate.wait()

        fixture.world.store.fault = lambda operation, key: wait()

        async def ask(number: int, host: str) -> None:
            who = ConnectionInfo(number, "P", "127.0.0.1", 9092, host)
            request = fetch_request({("a", number): 0}, 12, max_wait_ms=600_000)
            outcome = fixture.begin(fixture.fetch_handler, 1, 12, request, to=who)
            parts = parts_of(await fixture.finish(outcome, 1, 12))
            assert parts["a", number].records
            order.append(number)

        crowd = [asyncio.create_task(ask(number, "many")) for number in range(count)]
        for _ in range(5):
            await asyncio.sleep(0)
        other = asyncio.create_task(ask(count, "other"))
        for _ in range(5):
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(other, *crowd)
        assert order.index(count) < 100, order.index(count)

    run(scenario())
