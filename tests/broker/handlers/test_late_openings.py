"""Partitions that do not open for long, as the store or another broker is away: who asks is told so, and what
he asks for beside them, or behind them on the connection, goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millrace.broker.handlers.delete_records import DeleteRecords
from millrace.broker.handlers.describe_producers import DescribeProducers
from millrace.broker.handlers.list_offsets import ListOffsets
from millrace.broker.handlers.offset_for_leader_epoch import OffsetForLeaderEpoch
from millrace.broker.handlers.produce import ENTRY_OVERHEAD_BYTES
from millrace.broker.partitions.directory import OPENING_LATE_S
from millrace.broker.partitions.opening_turn import OPENING_S
from millrace.broker.requests.sequence_gaps import GAPS_MAX
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millrace.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from millrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.broker.broker_fixture import BrokerFixture, parts_of, produce_request
from tests.broker.handlers.test_fetch import filled, offsets
from tests.broker.handlers.test_produce import full_fixture, opened
from tests.broker.partitions.build import batch, run

LONG_MS = 60_000
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER

ASKS: dict[str, tuple[Callable[[BrokerFixture], Any], int, int, Any]] = {
    "OffsetForLeaderEpoch": (
        lambda fixture: OffsetForLeaderEpoch(fixture.directory),
        23,
        4,
        OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic("late", [OffsetForLeaderPartition(0, -1, 0)])]),
    ),
    "ListOffsets": (
        lambda fixture: ListOffsets(fixture.directory, fixture.unpacking),
        2,
        7,
        ListOffsetsRequest(-1, 0, [ListOffsetsTopic("late", [ListOffsetsPartition(0, -1, -1)])]),
    ),
}


WIDE = 250  # partitions, of more than one chunk
WIDE_ASKS: dict[str, tuple[Callable[[BrokerFixture], Any], int, int, Any]] = {
    "OffsetForLeaderEpoch": (
        lambda fixture: OffsetForLeaderEpoch(fixture.directory),
        23,
        4,
        OffsetForLeaderEpochRequest(
            -1, [OffsetForLeaderTopic("late", [OffsetForLeaderPartition(i, -1, 0) for i in range(WIDE)])]
        ),
    ),
    "ListOffsets": (
        lambda fixture: ListOffsets(fixture.directory, fixture.unpacking),
        2,
        7,
        ListOffsetsRequest(
            -1, 0, [ListOffsetsTopic("late", [ListOffsetsPartition(i, -1, -1) for i in range(WIDE)])]
        ),
    ),
    "DescribeProducers": (
        lambda fixture: DescribeProducers(fixture.directory),
        61,
        0,
        DescribeProducersRequest([TopicRequest("late", list(range(WIDE)))]),
    ),
    "DeleteRecords": (
        lambda fixture: DeleteRecords(fixture.directory, fixture.clock),
        21,
        2,
        DeleteRecordsRequest(
            [DeleteRecordsTopic("late", [DeleteRecordsPartition(i, 0) for i in range(WIDE)])], LONG_MS
        ),
    ),
}


async def late_fixture(partitions: int = 1) -> tuple[BrokerFixture, asyncio.Event]:
    """Topic `a` is open and has records; `late` opens once the event is set."""
    fixture = await BrokerFixture().start()
    await filled(fixture)
    fixture.make_topic("late", partitions)
    fixture.opener.gate = asyncio.Event()
    return fixture, fixture.opener.gate


def test_a_producer_goes_on_beside_a_partition_that_does_not_open() -> None:
    """Who waits is refused long before his client gives up all that it asked for, who comes later at once; no
    batch overtakes one that was refused, and each is there once in the end."""

    async def scenario() -> None:
        fixture, gate = await late_fixture()
        first, second = (batch(1, producer_id=9, sequence=sequence) for sequence in (0, 1))
        parts = parts_of(await fixture.produce({("late", 0): first, ("a", 0): batch(1)}, timeout_ms=LONG_MS))
        assert [part.error_code for part in parts.values()] == [NOT_LEADER, 0]
        outcome = fixture.begin(
            fixture.produce_handler, 0, 9, produce_request({("late", 0): first}, 9, timeout_ms=LONG_MS)
        )
        assert not asyncio.isfuture(outcome), "it waits"
        assert parts_of(await fixture.finish(outcome, 0, 9))["late", 0].error_code == NOT_LEADER
        gate.set()
        partition = await fixture.partition("late")
        codes = [
            parts_of(await fixture.produce({("late", 0): data}))["late", 0].error_code
            for data in (second, first, second, first)
        ]
        assert codes == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 0, 0]
        assert partition.high_watermark == 2

    run(scenario(), is_virtual=True)


def test_no_batch_overtakes_one_that_was_refused_in_however_many_partitions() -> None:
    """A producer that no partition knows yet has its next batches on their way when the first of more
    partitions than a connection remembers are refused, and those open between the two."""
    count = GAPS_MAX + 100

    async def scenario() -> None:
        fixture, gate = await late_fixture(count)

        async def produce(sequence: int) -> set[int]:
            data = {("late", index): batch(1, producer_id=9, sequence=sequence) for index in range(count)}
            parts = parts_of(await fixture.produce(data, timeout_ms=LONG_MS))
            assert len(parts) == count
            return {part.error_code for part in parts.values()}

        assert await produce(0) == {NOT_LEADER}
        gate.set()
        for index in range(count):
            await fixture.partition("late", index)
        codes = [await produce(sequence) for sequence in (1, 0, 1)]
        assert codes == [{ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}, {0}, {0}]

    run(scenario(), is_virtual=True)


def test_what_waited_for_an_opening_has_the_rest_of_its_time_for_room() -> None:
    """Its partition opened in time: what it waits for then is bounded by its own time-out."""

    async def scenario() -> None:
        fixture, away = await full_fixture().start(), asyncio.Event()
        for name in ("a", "late"):
            fixture.make_topic(name)
        await opened(fixture, ("a", 0))
        fixture.opener.gate = asyncio.Event()

        async def wait_for_store() -> None:
            await away.wait()

        fixture.world.store.fault = lambda operation, key: wait_for_store()
        large = batch(1, value=b"v" * 20_000)
        while fixture.engine.room_bytes >= len(large) + ENTRY_OVERHEAD_BYTES:
            await fixture.produce({("a", 0): large})
        outcome = fixture.begin(
            fixture.produce_handler, 0, 9, produce_request({("late", 0): large}, 9, timeout_ms=LONG_MS)
        )
        await asyncio.sleep(OPENING_S / 2)
        fixture.opener.gate.set()
        await fixture.partition("late")
        await asyncio.sleep(OPENING_S)
        assert not outcome.done()
        away.set()
        assert parts_of(await fixture.finish(outcome, 0, 9))["late", 0].error_code == 0

    run(scenario(), is_virtual=True)


def test_a_consumer_goes_on_beside_a_partition_that_does_not_open() -> None:
    """However long he would wait for records; he is not told so often that he asks without a pause."""

    async def scenario() -> None:
        fixture, gate = await late_fixture()
        loop = asyncio.get_running_loop()
        for wait_s in (OPENING_S, OPENING_LATE_S, OPENING_LATE_S):
            began_s = loop.time()
            parts = parts_of(await fixture.fetch({("late", 0): 0, ("a", 0): 0}, 12, max_wait_ms=600_000))
            assert [part.error_code for part in parts.values()] == [NOT_LEADER, 0]
            assert offsets(parts["a", 0])
            assert loop.time() - began_s == pytest.approx(wait_s, abs=0.01)
        gate.set()
        parts = parts_of(await fixture.fetch({("late", 0): 0}, 12, max_wait_ms=5))
        assert parts["late", 0].error_code == 0

    run(scenario(), is_virtual=True)


@pytest.mark.parametrize("api", ASKS)
def test_whoever_asks_where_a_partition_ends_holds_nobody_up_for_long(api: str) -> None:
    """What is behind it on the connection waits for its answer; every client knows the code for one to ask
    again after."""
    handler_of, key, version, request = ASKS[api]

    async def scenario() -> None:
        fixture, gate = await late_fixture()
        handler, loop = handler_of(fixture), asyncio.get_running_loop()
        for wait_s in (OPENING_S, OPENING_LATE_S):
            began_s = loop.time()
            response = await fixture.ask(handler, key, version, request)
            assert response.topics[0].partitions[0].error_code == NOT_LEADER
            assert loop.time() - began_s == pytest.approx(wait_s, abs=0.01)
        gate.set()
        response = await fixture.ask(handler, key, version, request)
        assert response.topics[0].partitions[0].error_code == 0

    run(scenario(), is_virtual=True)


@pytest.mark.parametrize("api", WIDE_ASKS)
def test_a_request_for_very_many_waits_no_longer(api: str) -> None:
    """However many of its partitions do not open: their openings begin together, and are late together."""
    handler_of, key, version, request = WIDE_ASKS[api]

    async def scenario() -> None:
        fixture, gate = await late_fixture(WIDE)
        handler, loop = handler_of(fixture), asyncio.get_running_loop()
        for wait_s in (OPENING_S, OPENING_LATE_S):
            began_s = loop.time()
            response = await fixture.ask(handler, key, version, request)
            codes = [part.error_code for topic in response.topics for part in topic.partitions]
            assert codes == [NOT_LEADER] * WIDE
            assert loop.time() - began_s == pytest.approx(wait_s, abs=0.01)
        gate.set()
        for index in range(WIDE):
            await fixture.partition("late", index)

    run(scenario(), is_virtual=True)
