"""ListOffsets: the special times by version, times through the index, codes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from millrace.broker.handlers import list_offsets
from millrace.broker.handlers.list_offsets import ListOffsets
from millrace.broker.partitions.unpacking import Unpacking
from millrace.protocol.batches import BatchHeader, Codec
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millrace.protocol.primitives import Buffer
from millrace.runtime.offload import InlineOffload
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.broker_fixture import BrokerFixture, connection
from tests.broker.partitions.build import MEMORY_BYTES, START_MS, batch, run
from tests.broker.partitions.stopped import settle
from tests.live.stamped import stamped
from tests.s3stream.build import World

# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_an_empty_partition_has_ends_and_no_times": "reads nothing",
    "test_lookups_are_few_tasks_and_few_an_iteration": "is of lookups that wait for nothing",
}


async def ask(
    fixture: BrokerFixture, version: int, *asked: tuple[str, int, int], isolation: int = 0, epoch: int = -1
) -> list[Any]:
    """Answers to (topic, partition, timestamp)."""
    topics = [
        ListOffsetsTopic(name, [ListOffsetsPartition(index, epoch, time)]) for name, index, time in asked
    ]
    request = ListOffsetsRequest(-1, isolation, topics)
    response = await fixture.ask(ListOffsets(fixture.directory, fixture.unpacking), 2, version, request)
    return [part for topic in response.topics for part in topic.partitions]


def shown(part: Any) -> tuple[int, int, int]:
    return part.error_code, part.offset, part.timestamp


async def filled(fixture: BrokerFixture) -> None:
    """Offsets 0..9, two a batch; times 0, 10, 20, 30, 5 and one more in each batch; log start 3."""
    fixture.make_topic("a")
    for step in (0, 10, 20, 30, 5):
        await fixture.produce({("a", 0): batch(2, timestamp=START_MS + step, step_ms=1)})
    (await fixture.partition("a")).raise_log_start(3, START_MS)
    await fixture.settle()


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize("is_open", [True, False])
def test_special_times_by_version(version: int, is_open: bool) -> None:
    """Each special time has its answer from the version on that knows it, and UNSUPPORTED_VERSION below; so
    has a time unheard of."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        if not is_open:
            await fixture.crash()
        await fixture.begin_reading()
        unsupported = (ErrorCode.UNSUPPORTED_VERSION, -1, -1)
        expected = {
            -1: (0, 10, -1),
            -2: (0, 3, -1),
            -3: (0, 7, START_MS + 31) if version >= 7 else unsupported,
            -4: (0, 3, -1) if version >= 8 else unsupported,
            -5: (0, -1, -1) if version >= 9 else unsupported,
            -6: (0, -1, -1) if version >= 11 else unsupported,
            -7: unsupported,
        }
        for timestamp, answer in expected.items():
            (part,) = await ask(fixture, version, ("a", 0, timestamp))
            assert shown(part) == answer, timestamp
            if timestamp in (-1, -2):
                assert part.leader_epoch == (0 if version >= 4 else -1)

    run(scenario())


@pytest.mark.parametrize("version", [1, 4, 7, 11])
def test_times_find_the_first_record_that_is_not_earlier(version: int) -> None:
    """By record, not by batch; not below the log's start; none is no error."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        expected = {0: (3, 11), 11: (3, 11), 12: (4, 20), 21: (5, 21), 22: (6, 30), 31: (7, 31)}
        for step, (offset, found) in expected.items():
            (part,) = await ask(fixture, version, ("a", 0, START_MS + step))
            assert shown(part) == (0, offset, START_MS + found)
            assert part.leader_epoch == (0 if version >= 4 else -1)
        (part,) = await ask(fixture, version, ("a", 0, START_MS + 32))
        assert (*shown(part), part.leader_epoch) == (0, -1, -1, -1)

    run(scenario())


def test_an_empty_partition_has_ends_and_no_times() -> None:
    """Latest and earliest are 0; no record is the latest, or at any time."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 5)
        parts = await ask(
            fixture, 11, *(("a", index, time) for index, time in enumerate((-1, -2, -3, -4, 0)))
        )
        assert [shown(part) for part in parts] == [
            (0, 0, -1),
            (0, 0, -1),
            (0, -1, -1),
            (0, 0, -1),
            (0, -1, -1),
        ]

    run(scenario())


def test_committed_readers_find_nothing_behind_the_last_stable_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where something holds it back it is their latest offset, and a time whose record lies behind it is not
    found."""
    monkeypatch.setattr("millrace.broker.partitions.partition.last_stable_offset", lambda high_watermark: 6)

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        for isolation, end, found in ((0, 10, (0, 6, START_MS + 30)), (1, 6, (0, -1, -1))):
            (latest,) = await ask(fixture, 7, ("a", 0, -1), isolation=isolation)
            (timed,) = await ask(fixture, 7, ("a", 0, START_MS + 25), isolation=isolation)
            assert (latest.offset, shown(timed)) == (end, found)

    run(scenario())


def test_what_is_not_durable_is_not_told() -> None:
    """The latest offset is the high watermark for every isolation, and a time finds nothing above it."""

    async def scenario() -> None:
        fixture = await BrokerFixture(World(is_auto=False)).start()
        fixture.make_topic("a")
        partition = await fixture.partition("a")
        for step in range(3):
            partition.append(batch(1, timestamp=START_MS + step), 9, START_MS, 0, lambda _: None)
        fixture.world.wal.confirm(2)
        for isolation in (0, 1):
            (part,) = await ask(fixture, 7, ("a", 0, -1), isolation=isolation)
            assert part.offset == 2
        (part,) = await ask(fixture, 7, ("a", 0, START_MS + 2))
        assert shown(part) == (0, -1, -1)
        (part,) = await ask(fixture, 7, ("a", 0, -3))
        assert shown(part) == (0, 1, START_MS + 1)

    run(scenario())


def test_codes() -> None:
    """Unknown places, other leaders, epochs that differ, and partitions named twice."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        fixture.make_topic("away", leader=2)
        for time in (-1, -3, 0):
            parts = await ask(fixture, 9, ("none", 0, time), ("a", 4, time), ("away", 0, time))
            assert [part.error_code for part in parts] == [3, 3, 6]
            fixture.move("a", 0, 1)
            epoch = (await fixture.partition("a")).leader_epoch
            codes = []
            for asked in (epoch - 1, epoch, epoch + 1):
                (part,) = await ask(fixture, 9, ("a", 0, time), epoch=asked)
                codes.append(part.error_code)
            assert codes == [ErrorCode.FENCED_LEADER_EPOCH, 0, ErrorCode.UNKNOWN_LEADER_EPOCH]
        parts = await ask(fixture, 9, ("a", 0, -1), ("a", 0, -2), ("away", 0, -1))
        assert [part.error_code for part in parts] == [
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            6,
        ]

    run(scenario())


def test_an_answer_that_needs_no_reading_is_given_at_once() -> None:
    """Ends of open partitions cost no task; one that has to be looked up makes the request wait, and only
    that one."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await filled(fixture)
        handler = ListOffsets(fixture.directory, fixture.unpacking)
        topics = [ListOffsetsTopic("a", [ListOffsetsPartition(0, -1, -1)])]
        outcome = fixture.begin(handler, 2, 9, ListOffsetsRequest(-1, 0, topics))
        assert not asyncio.iscoroutine(outcome)
        topics = [ListOffsetsTopic("a", [ListOffsetsPartition(0, -1, START_MS)])]
        outcome = fixture.begin(handler, 2, 9, ListOffsetsRequest(-1, 0, topics))
        assert asyncio.iscoroutine(outcome)
        await outcome
        refused = handler.refuse(ListOffsetsRequest(-1, 0, topics), 7)
        assert [part.error_code for part in refused.topics[0].partitions] == [7]

    run(scenario())


def test_cold_times_are_found_in_objects() -> None:
    """With everything uploaded and no cache, lookups in several partitions at once read index and data from
    the store."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 4)
        for index in range(4):
            for step in range(20):
                await fixture.produce({("a", index): batch(3, timestamp=START_MS + 10 * step)})
        await fixture.directory.close()
        await fixture.engine.close(1000)
        await fixture.crash()
        fixture.engine.drop_caches()
        parts = await ask(fixture, 9, *(("a", index, START_MS + 95) for index in range(4)))
        assert [shown(part) for part in parts] == [(0, 30, START_MS + 100)] * 4

    run(scenario())


class StoppedUnpacking(Unpacking):
    """What lies in gzip is unpacked when a test says so."""

    def __init__(self) -> None:
        super().__init__(InlineOffload(), MEMORY_BYTES, YieldQueue())
        self.gate = asyncio.Event()
        self.waiting = 0

    @asynccontextmanager
    async def unpacked(self, view: memoryview, header: BatchHeader) -> AsyncIterator[Buffer]:
        if header.codec == Codec.GZIP:
            self.waiting += 1
            try:
                await self.gate.wait()
            finally:
                self.waiting -= 1
        async with super().unpacked(view, header) as payload:
            yield payload


LIE_MS, LIARS = START_MS + 100, 40


async def with_liars(fixture: BrokerFixture) -> None:
    """Topics: "honest" of one partition, "lies" of many, each with three batches that lie."""
    fixture.make_topic("honest")
    await fixture.produce({("honest", 0): batch(2, timestamp=LIE_MS - 1, step_ms=1)})
    fixture.make_topic("lies", LIARS)
    for index in range(LIARS):
        for _ in range(3):
            lie = stamped(START_MS, LIE_MS, [START_MS] * 2, Codec.GZIP)
            await fixture.produce({("lies", index): memoryview(lie)})


def lookup(name: str, count: int, timeout_ms: int = 0) -> ListOffsetsRequest:
    asked = [ListOffsetsPartition(index, -1, LIE_MS) for index in range(count)]
    return ListOffsetsRequest(-1, 0, [ListOffsetsTopic(name, asked)], timeout_ms)


def begin(
    fixture: BrokerFixture, handler: ListOffsets, request: ListOffsetsRequest, number: int
) -> asyncio.Task[Any]:
    """Asked on a connection of that number."""
    made = fixture.begin(handler, 2, 10, request, to=connection(number))
    return asyncio.ensure_future(fixture.finish(made, 2, 10))


def codes(response: Any) -> set[int]:
    return {part.error_code for part in response.topics[0].partitions}


def test_one_connections_lookups_leave_room_for_others() -> None:
    """However many partitions it asks about, in however many requests; and those that were found to lie go on
    in a line of their own."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await with_liars(fixture)
        unpacking = StoppedUnpacking()
        handler = ListOffsets(fixture.directory, unpacking)
        attack = [begin(fixture, handler, lookup("lies", LIARS), 1) for _ in range(3)]
        await settle(lambda: unpacking.waiting == list_offsets.LOOKUPS_OF_ONE)
        answer = await begin(fixture, handler, lookup("honest", 1), 2)
        assert shown(answer.topics[0].partitions[0]) == (0, 1, LIE_MS)
        unpacking.gate.set()
        for task in attack:
            assert codes(await task) == {0}
        assert handler._permits.held_count == handler._slow_permits.held_count == 0

    run(scenario())


def test_lookups_are_few_tasks_and_few_an_iteration() -> None:
    """Twenty connections ask for a time of two hundred partitions each, which are open and cached: there are
    no more tasks than lookups of one connection for each, and an iteration of the loop ends few lookups, but
    several with each permit."""
    partitions = 200

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", partitions)
        await fixture.produce({("a", index): batch(1, timestamp=START_MS) for index in range(partitions)})
        handler = ListOffsets(fixture.directory, fixture.unpacking)
        loop, before = asyncio.get_running_loop(), len(asyncio.all_tasks())
        ended, tasks = [0], [0]

        def look() -> None:
            found = (part for task in parts for part in task if part.offset >= 0)
            ended.append(sum(1 for _ in found))
            tasks.append(len(asyncio.all_tasks()) - before)
            if ended[-1] < 20 * partitions:
                loop.call_soon(look)

        parts: list[list[Any]] = []
        answer_slowly = handler._answer_slowly

        def seen(context: Any, response: Any, slow: Any, request: Any) -> Any:
            parts.append([answer for _, _, answer in slow])
            return answer_slowly(context, response, slow, request)

        handler._answer_slowly = seen  # type: ignore[method-assign]
        request = ListOffsetsRequest(
            -1, 0, [ListOffsetsTopic("a", [ListOffsetsPartition(n, -1, START_MS) for n in range(partitions)])]
        )
        asked = [begin(fixture, handler, request, number) for number in range(20)]
        look()
        for task in asked:
            assert codes(await task) == {0}
        assert max(tasks) <= 20 * (list_offsets.LOOKUPS_OF_ONE + 1)
        most = max(after - before for before, after in pairwise(ended))
        at_once = list_offsets.LOOKUPS_AT_ONCE
        assert at_once < most <= at_once * list_offsets.LOOKUPS_PER_PERMIT, most

    run(scenario())


def test_a_lookup_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """With REQUEST_TIMED_OUT, those in line as well: the client's own time where it is shorter. No place is
    lost."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await with_liars(fixture)
        unpacking = StoppedUnpacking()
        handler = ListOffsets(fixture.directory, unpacking)
        for timeout_ms, longest_s in ((0, 0.1), (20, 600.0), (600_000, 0.1)):
            monkeypatch.setattr(list_offsets, "LOOKUP_S_MAX", longest_s)
            answer = await begin(fixture, handler, lookup("lies", LIARS, timeout_ms), 1)
            assert codes(answer) == {ErrorCode.REQUEST_TIMED_OUT}
            assert handler._permits.held_count == handler._permits.waiting_count == 0
        monkeypatch.setattr(list_offsets, "LOOKUP_S_MAX", 15.0)
        unpacking.gate.set()
        assert codes(await begin(fixture, handler, lookup("lies", LIARS), 1)) == {0}

    run(scenario())


def test_lookups_of_a_connection_that_is_closed_end() -> None:
    """At the next batch, and those in line when they come to a place."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        await with_liars(fixture)
        unpacking = StoppedUnpacking()
        handler = ListOffsets(fixture.directory, unpacking)
        leaving = connection(1)
        made = fixture.begin(handler, 2, 10, lookup("lies", LIARS), to=leaving)
        task = asyncio.ensure_future(fixture.finish(made, 2, 10))
        await settle(lambda: unpacking.waiting == list_offsets.LOOKUPS_OF_ONE)
        leaving.is_open = False
        unpacking.gate.set()
        assert codes(await task) == {ErrorCode.NETWORK_EXCEPTION}
        assert handler._permits.held_count == handler._slow_permits.held_count == 0
        assert len(handler._lookups.true_times) == list_offsets.LOOKUPS_OF_ONE

    run(scenario())
