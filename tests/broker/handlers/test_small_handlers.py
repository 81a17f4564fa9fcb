"""OffsetForLeaderEpoch, DeleteRecords, DescribeProducers and InitProducerId, on every version."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.handlers.delete_records import DeleteRecords
from millrace.broker.handlers.describe_producers import DescribeProducers
from millrace.broker.handlers.init_producer_id import InitProducerId
from millrace.broker.handlers.offset_for_leader_epoch import OffsetForLeaderEpoch
from millrace.broker.producer_ids import ProducerIds
from millrace.broker.requests.transaction_refusals import TransactionRefusals
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millrace.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from millrace.protocol.messages.init_producer_id import InitProducerIdRequest
from millrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.broker.broker_fixture import BrokerFixture, parts_of, topic_id
from tests.broker.partitions.build import START_MS, batch, run
from tests.patience import eventually
from tests.s3stream.build import World

# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_an_end_that_is_not_durable_is_not_told": "asks of what is in flight",
    "test_deletions_that_are_refused": "reads nothing",
    "test_every_producer_gets_an_id_of_its_own": "reads nothing",
    "test_a_known_id_does_not_matter": "reads nothing",
    "test_an_id_goes_with_its_epoch": "reads nothing",
    "test_transactional_ids_are_refused_for_good": "reads nothing",
    "test_the_next_block_is_leased_before_it_is_needed": "reads nothing",
    "test_without_a_controller_producers_are_asked_to_come_again": "reads nothing",
    "test_refusals_of_the_dispatcher_can_be_read": "reads nothing",
}

# -- OffsetForLeaderEpoch


async def ends(
    fixture: BrokerFixture, version: int, *asked: tuple[str, int, int], current: int = -1
) -> list[tuple[int, int, int]]:
    topics = [
        OffsetForLeaderTopic(name, [OffsetForLeaderPartition(index, current, e)]) for name, index, e in asked
    ]
    handler = OffsetForLeaderEpoch(fixture.directory)
    response = await fixture.ask(handler, 23, version, OffsetForLeaderEpochRequest(-1, topics))
    parts = [part for topic in response.topics for part in topic.partitions]
    return [(part.error_code, part.leader_epoch, part.end_offset) for part in parts]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_epoch_ends_where_the_next_began(version: int) -> None:
    """The current epoch ends at the high watermark, earlier ones where the next began, others are unknown;
    codes as elsewhere."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        fixture.make_topic("away", leader=2)
        for _ in range(3):
            await fixture.produce({("a", 0): batch(5)})
            fixture.move("a", 0, 1)
            await fixture.partition("a")
        await fixture.begin_reading()
        assert await ends(fixture, version, *(("a", 0, epoch) for epoch in (-1, 0, 1, 2, 3, 4))) == [
            (0, -1, -1),
            (0, 0, 5),
            (0, 1, 10),
            (0, 2, 15),
            (0, 3, 15),
            (0, -1, -1),
        ]
        assert await ends(fixture, version, ("none", 0, 0), ("a", 3, 0), ("away", 0, 0)) == [
            (3, -1, -1),
            (3, -1, -1),
            (6, -1, -1),
        ]
        found = [(await ends(fixture, version, ("a", 0, 0), current=current))[0][0] for current in (2, 3, 4)]
        assert found == [ErrorCode.FENCED_LEADER_EPOCH, 0, ErrorCode.UNKNOWN_LEADER_EPOCH]

    run(scenario())


def test_an_end_that_is_not_durable_is_not_told() -> None:
    """Neither of the current epoch nor of one that ended while batches were in flight."""

    async def scenario() -> None:
        fixture = await BrokerFixture(World(is_auto=False)).start()
        fixture.make_topic("a")
        partition = await fixture.partition("a")
        for _ in range(2):
            partition.append(batch(5), 9, START_MS, 0, lambda _: None)
        fixture.world.wal.confirm(1)
        assert await ends(fixture, 4, ("a", 0, 0)) == [(0, 0, 5)]
        fixture.move("a", 0, 1)
        assert await ends(fixture, 4, ("a", 0, 0), ("a", 0, 1)) == [(0, 0, 5), (0, 1, 5)]
        fixture.world.wal.confirm()
        assert await ends(fixture, 4, ("a", 0, 0), ("a", 0, 1)) == [(0, 0, 10), (0, 1, 10)]

    run(scenario())


# -- DeleteRecords


async def delete(
    fixture: BrokerFixture, version: int, *asked: tuple[str, int, int], timeout_ms: int = 5000
) -> list[tuple[int, int]]:
    topics = [
        DeleteRecordsTopic(name, [DeleteRecordsPartition(index, offset)]) for name, index, offset in asked
    ]
    handler = DeleteRecords(fixture.directory, fixture.clock)
    response = await fixture.ask(handler, 21, version, DeleteRecordsRequest(topics, timeout_ms))
    return [(part.error_code, part.low_watermark) for topic in response.topics for part in topic.partitions]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_are_deleted_up_to_an_offset(version: int) -> None:
    """The answer has the new start; a lower offset changes nothing; -1 deletes all; beyond the watermark is
    out of range."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        for _ in range(4):
            await fixture.produce({("a", 0): batch(5)})
        steps = ((7, 7), (3, 7), (7, 7), (0, 7), (20, 20), (-1, 20))
        for offset, start in steps:
            assert await delete(fixture, version, ("a", 0, offset)) == [(0, start)]
            await fixture.begin_reading()
            partition = await fixture.partition("a")
            assert partition.log_start_offset == start
            for asked, code in ((start - 1, ErrorCode.OFFSET_OUT_OF_RANGE), (start, 0)):
                (part,) = parts_of(await fixture.fetch({("a", 0): asked})).values()
                assert part.error_code == code
            assert bool(part.records) == (start < 20)
        for offset in (21, -2):
            assert await delete(fixture, version, ("a", 0, offset)) == [(ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
        await fixture.settle()
        assert partition.data.start == 20

    run(scenario())


def test_deletions_that_are_refused() -> None:
    """Unknown places, other leaders, compacted topics and the broker's own; each leaves the others alone, and
    none is opened to be refused."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        fixture.make_topic("away", leader=2)
        fixture.make_topic("compacted", cleanup_policy="compact")
        fixture.make_topic("both", cleanup_policy="compact,delete")
        fixture.make_topic("__consumer_offsets")
        names = ("a", "none", "away", "compacted", "both", "__consumer_offsets")
        codes = [code for code, _ in await delete(fixture, 2, *((name, 0, 0) for name in names))]
        assert codes == [0, 3, 6, ErrorCode.POLICY_VIOLATION, 0, ErrorCode.INVALID_TOPIC_EXCEPTION]
        assert [opened for opened, _, _ in fixture.opener.opened] == [topic_id("a"), topic_id("both")]

    run(scenario())


def test_a_deletion_is_answered_when_it_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash right after the answer keeps it; a deletion that takes too long is REQUEST_TIMED_OUT, which
    means unknown."""
    monkeypatch.setattr("millrace.broker.handlers.delete_records.TIMEOUT_MS_MIN", 20)

    async def scenario() -> None:
        fixture = await BrokerFixture(World(is_auto=False)).start()
        fixture.make_topic("a")
        partition = await fixture.partition("a")
        partition.append(batch(5), 9, START_MS, 0, lambda _: None)
        fixture.world.wal.confirm()
        waiting = asyncio.ensure_future(delete(fixture, 2, ("a", 0, 3)))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        fixture.world.wal.confirm()
        assert await waiting == [(0, 3)]
        await fixture.crash()
        fixture.world.wal.is_auto = True
        assert (await fixture.partition("a")).log_start_offset == 3
        fixture.world.wal.is_auto = False
        assert await delete(fixture, 2, ("a", 0, 4), timeout_ms=1) == [(ErrorCode.REQUEST_TIMED_OUT, -1)]

    run(scenario())


# -- DescribeProducers


def test_producers_are_described() -> None:
    """Each with its epoch, last sequence and time; unknown places and other leaders have their codes."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 2)
        fixture.make_topic("away", leader=2)
        await fixture.produce({("a", 0): batch(3, producer_id=7, sequence=0)})
        await fixture.produce(
            {("a", 0): batch(2, producer_id=9, epoch=4, sequence=0, timestamp=START_MS - 5)}
        )
        await fixture.begin_reading()
        topics = [TopicRequest("a", [0, 1, 5]), TopicRequest("away", [0])]
        handler = DescribeProducers(fixture.directory)
        response = await fixture.ask(handler, 61, 0, DescribeProducersRequest(topics))
        parts = [part for topic in response.topics for part in topic.partitions]
        assert [part.error_code for part in parts] == [0, 0, 3, 6]
        found: list[Any] = [
            (p.producer_id, p.producer_epoch, p.last_sequence, p.last_timestamp, p.current_txn_start_offset)
            for p in parts[0].active_producers
        ]
        assert found == [(7, 0, 2, START_MS, -1), (9, 4, 1, START_MS - 5, -1)]
        assert parts[1].active_producers == []

    run(scenario())


# -- InitProducerId

NO_TRANSACTIONS = TransactionRefusals(lambda: 0.0)


class Blocks:
    """Blocks of a few ids; may be slow, or refuse."""

    def __init__(self, size: int = 3) -> None:
        self.size = size
        self.asked = 0
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None

    async def allocate_producer_ids(self) -> tuple[int, int]:
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.asked += 1
        return self.size * self.asked, self.size


def init(
    fixture: BrokerFixture, handler: InitProducerId, version: int, transactional_id: str | None = None
) -> Any:
    return fixture.ask(handler, 22, version, InitProducerIdRequest(transactional_id, 1000))


@pytest.mark.parametrize("version", range(6))
def test_every_producer_gets_an_id_of_its_own(version: int) -> None:
    """Ids come from leased blocks, epoch 0, and no id twice, however many ask at once."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        blocks = Blocks()
        handler = InitProducerId(ProducerIds(blocks), NO_TRANSACTIONS)
        answers = await asyncio.gather(*(init(fixture, handler, version) for _ in range(20)))
        assert {(answer.error_code, answer.producer_epoch) for answer in answers} == {(0, 0)}
        assert sorted(answer.producer_id for answer in answers) == list(range(3, 23))
        assert blocks.asked in (7, 8)

    run(scenario())


def test_a_known_id_does_not_matter() -> None:
    """An idempotent producer that names an id and epoch gets a new one, as from Kafka."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        handler = InitProducerId(ProducerIds(Blocks()), NO_TRANSACTIONS)
        request = InitProducerIdRequest(None, 1000, 77, 5)
        answer = await fixture.ask(handler, 22, 4, request)
        assert (answer.producer_id, answer.producer_epoch) == (3, 0)

    run(scenario())


@pytest.mark.parametrize(("producer_id", "epoch"), [(77, -1), (-1, 5)])
def test_an_id_goes_with_its_epoch(producer_id: int, epoch: int) -> None:
    """One without the other is malformed."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        handler = InitProducerId(ProducerIds(Blocks()), NO_TRANSACTIONS)
        answer = await fixture.ask(handler, 22, 4, InitProducerIdRequest(None, 1000, producer_id, epoch))
        assert answer.error_code == ErrorCode.INVALID_REQUEST

    run(scenario())


@pytest.mark.parametrize("version", range(6))
def test_transactional_ids_are_refused_for_good(version: int) -> None:
    """There are no transactions yet: a code that no client retries. An empty id is malformed."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        handler = InitProducerId(ProducerIds(Blocks()), NO_TRANSACTIONS)
        answer = await init(fixture, handler, version, "t")
        assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
        assert (await init(fixture, handler, version, "")).error_code == ErrorCode.INVALID_REQUEST

    run(scenario())


def test_the_next_block_is_leased_before_it_is_needed() -> None:
    """With a slow controller producers go on from the block in hand; only when that is used up do they
    wait."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        blocks = Blocks(30)
        handler = InitProducerId(ProducerIds(blocks), NO_TRANSACTIONS)
        for expected in range(30, 56):
            assert (await init(fixture, handler, 4)).producer_id == expected
        assert blocks.asked == 1
        assert (await init(fixture, handler, 4)).producer_id == 56
        await eventually(lambda: blocks.asked == 2)
        blocks.gate = asyncio.Event()
        taken = [(await init(fixture, handler, 4)).producer_id for _ in range(33)]
        assert taken == list(range(57, 90))
        waiting = asyncio.ensure_future(init(fixture, handler, 4))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        blocks.gate.set()
        assert (await waiting).producer_id == 90

    run(scenario())


def test_without_a_controller_producers_are_asked_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal or a long silence is COORDINATOR_LOAD_IN_PROGRESS; afterwards ids are given as before."""
    monkeypatch.setattr("millrace.broker.handlers.init_producer_id.LEASE_TIMEOUT_S", 0.02)

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        blocks = Blocks()
        handler = InitProducerId(ProducerIds(blocks), NO_TRANSACTIONS)
        blocks.error = KafkaError(ErrorCode.STALE_BROKER_EPOCH)
        assert (await init(fixture, handler, 4)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        blocks.error, blocks.gate = None, asyncio.Event()
        assert (await init(fixture, handler, 4)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        blocks.gate.set()
        answers = [await init(fixture, handler, 4) for _ in range(4)]
        assert [answer.error_code for answer in answers] == [0] * 4
        assert len({answer.producer_id for answer in answers}) == 4

    run(scenario())


def test_refusals_of_the_dispatcher_can_be_read() -> None:
    """Each handler can say one code for everything that was asked."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        deletion = DeleteRecordsRequest([DeleteRecordsTopic("a", [DeleteRecordsPartition(3, 0)])])
        refused = DeleteRecords(fixture.directory, fixture.clock).refuse(deletion, 7)
        assert [(part.partition_index, part.error_code) for part in refused.topics[0].partitions] == [(3, 7)]
        epochs = OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic("a", [OffsetForLeaderPartition(2)])])
        found = OffsetForLeaderEpoch(fixture.directory).refuse(epochs, 7)
        assert [(part.partition, part.error_code) for part in found.topics[0].partitions] == [(2, 7)]
        described = DescribeProducers(fixture.directory).refuse(
            DescribeProducersRequest([TopicRequest("a", [1])]), 7
        )
        assert [(part.partition_index, part.error_code) for part in described.topics[0].partitions] == [
            (1, 7)
        ]
        assert parts_of(fixture.fetch_handler.refuse(_fetch_request(), 7))["a", 0].error_code == 7

    run(scenario())


def _fetch_request() -> Any:
    from tests.broker.broker_fixture import fetch_request

    return fetch_request({("a", 0): 0}, 12)
