"""Reading copies: what readers are given of a partition that waits for a log which nobody can recover."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from millrace.broker.coordinators.groups.config import OFFSETS_TOPIC
from millrace.broker.handlers.find_coordinator import GROUP, TRANSACTION, FindCoordinator
from millrace.broker.handlers.init_producer_id import InitProducerId
from millrace.broker.handlers.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, ListOffsets
from millrace.broker.handlers.metadata import PARTITIONS_PER_CHUNK, Metadata
from millrace.broker.handlers.offset_for_leader_epoch import OffsetForLeaderEpoch
from millrace.broker.partitions import reading_copies
from millrace.broker.partitions.opening import Leadership, open_partition
from millrace.broker.partitions.partition import UNKNOWN_END, Partition
from millrace.broker.partitions.reading_copies import REST_S, RETRY_S
from millrace.broker.producer_ids import ProducerIds
from millrace.broker.requests.request import ConnectionInfo
from millrace.broker.topic_creation import TopicCreation
from millrace.kraft.tables.features import OWED_RANGES_LEVEL
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from millrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millrace.protocol.metadata_records import TopicRecord
from millrace.protocol.stream_records import EndFailoverRecord, FailoverRecord, OwedRangeRecord, StreamRecord
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.ids import StreamRole
from tests.broker.broker_fixture import NODE, OTHER, BrokerFixture, connection, parts_of, topic_id
from tests.broker.handlers.test_metadata import CreatingChannel, metadata, named
from tests.broker.handlers.test_small_handlers import NO_TRANSACTIONS, Blocks, init
from tests.broker.partitions.build import START_MS, batch, run
from tests.patience import PATIENCE_S, eventually

RECORDS = 5
ABOVE = RECORDS + 1  # the high watermark that is told: a consumer that is there would be told that it has all
NOBODY = -1
ROLES = (StreamRole.META, StreamRole.DATA, StreamRole.TIME)


async def waiting(*names: str, by_node: int = NOBODY, is_saved: bool = True) -> BrokerFixture:
    """Topics of one partition, whose first records are in objects, with a checkpoint behind them or without.
    Their broker is gone, and somebody is asked to recover its log, or nobody can."""
    fixture = await BrokerFixture(level=OWED_RANGES_LEVEL).start()
    for name in names:
        fixture.make_topic(name)
        for number in range(RECORDS):
            await fixture.produce({(name, 0): batch(1, timestamp=START_MS + number)})
    assert await fixture.engine.upload_all(60_000)
    streams = fixture.world.catalog.streams
    uploaded = {number: (stream.start, stream.end) for number, stream in streams.items()}
    for name in names:
        fixture.move(name, 0, OTHER)
    await eventually(lambda: not fixture.directory._closing)
    for name in names:
        for role in ROLES:
            stream_id = fixture.opener._ids[topic_id(name), 0, role]
            start, end = uploaded[stream_id]
            if is_saved:
                start, end = streams[stream_id].start, streams[stream_id].end
            fixture.publish(StreamRecord(stream_id, topic_id(name), 0, role, 1, OTHER, 1, start, end))
    fixture.fence(OTHER)
    fixture.publish(FailoverRecord(OTHER, by_node, [NODE] if by_node == NOBODY else [], "it is not here"))
    fixture.engine.drop_caches()
    return fixture


async def offset_at(fixture: BrokerFixture, time_ms: int) -> tuple[int, int]:
    """The error code, and the offset."""
    request = ListOffsetsRequest(topics=[ListOffsetsTopic("a", [ListOffsetsPartition(0, timestamp=time_ms)])])
    response = await fixture.ask(ListOffsets(fixture.directory, fixture.unpacking), 2, 7, request)
    answer = response.topics[0].partitions[0]
    return answer.error_code, answer.offset


async def fetched(fixture: BrokerFixture, name: str = "a", offset: int = 0) -> tuple[int, int, int]:
    """The error code, the high watermark, and how many bytes."""
    part = parts_of(await fixture.fetch({(name, 0): offset}))[name, 0]
    return part.error_code, part.high_watermark, len(part.records or b"")


def test_readers_are_given_what_objects_hold() -> None:
    """Nobody is told where the partition ends: who is above what is known waits, and is not sent away."""

    async def scenario() -> None:
        fixture = await waiting("a")
        code, end, size_bytes = await fetched(fixture)
        assert (code, end, size_bytes > 0) == (0, ABOVE, True)
        assert await fetched(fixture, offset=RECORDS) == (0, ABOVE, 0)
        assert await fetched(fixture, offset=RECORDS + 100) == (0, ABOVE + 100, 0)
        assert (await fetched(fixture, offset=-1))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
        unknown = (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert await offset_at(fixture, EARLIEST) == (0, 0)
        assert await offset_at(fixture, LATEST) == unknown
        assert await offset_at(fixture, MAX_TIMESTAMP) == unknown
        assert await offset_at(fixture, START_MS + 3) == (0, 3)
        assert await offset_at(fixture, START_MS + RECORDS) == unknown
        assert fixture.opener.opened == [(topic_id("a"), 0, 0)], "by the leader of before"

    run(scenario())


def test_nobody_who_read_on_is_told_that_he_was_cut_off() -> None:
    """The last epoch that a copy knows of may have gone on in the log that is waited for, and so may have one
    that began there."""

    async def scenario() -> None:
        fixture = await waiting("a")
        fixture.move("a", 0, NODE)
        handler = OffsetForLeaderEpoch(fixture.directory)
        for epoch in (0, 1, 2):
            asked = OffsetForLeaderTopic("a", [OffsetForLeaderPartition(0, -1, epoch)])
            response = await fixture.ask(handler, 23, 4, OffsetForLeaderEpochRequest(-1, [asked]))
            answer = response.topics[0].partitions[0]
            assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, epoch, UNKNOWN_END)
            response = await fixture.fetch({("a", 0): RECORDS + 3}, last_fetched_epoch=epoch)
            part = parts_of(response)["a", 0]
            assert (part.error_code, part.diverging_epoch.epoch) == (0, -1)

    run(scenario())


def test_producers_are_refused() -> None:
    async def scenario() -> None:
        fixture = await waiting("a")
        await fetched(fixture)
        part = parts_of(await fixture.produce({("a", 0): batch()}))["a", 0]
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        copy = fixture.directory.get(topic_id("a"), 0, is_reading=True)
        assert isinstance(copy, Partition)
        with pytest.raises(KafkaError):
            copy.append_own(bytes(batch()), START_MS, lambda _: None)

    run(scenario())


@pytest.mark.parametrize("by_node", [NODE, NOBODY])
def test_a_copy_is_for_a_log_that_nobody_can_recover(by_node: int) -> None:
    """As long as somebody recovers it, which takes seconds, no store is read for copies."""

    async def scenario() -> None:
        fixture = await waiting("a", by_node=by_node)
        gets_count = fixture.world.store.count("get")
        code, _, _ = await fetched(fixture)
        assert (code == 0) == (by_node == NOBODY)
        assert (fixture.world.store.count("get") > gets_count) == (by_node == NOBODY)

    run(scenario())


def test_who_waits_at_a_copy_is_answered_when_the_log_is_recovered() -> None:
    async def scenario() -> None:
        fixture = await waiting("a")
        await fetched(fixture)
        asked = asyncio.ensure_future(fixture.fetch({("a", 0): RECORDS}, max_wait_ms=3_600_000))
        await asyncio.sleep(0)
        assert not asked.done()
        for role in ROLES:
            stream_id = fixture.opener._ids[topic_id("a"), 0, role]
            fixture.publish(StreamRecord(stream_id, topic_id("a"), 0, role, 1, OTHER, 0, 0, RECORDS))
        fixture.publish(EndFailoverRecord(OTHER))
        part = parts_of(await asyncio.wait_for(asked, PATIENCE_S))["a", 0]
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario())


def test_a_broker_that_is_gone_itself_serves_no_copy() -> None:
    """It was fenced and lives on: who still asks it read on in its log, and a copy would tell another end."""

    async def scenario() -> None:
        fixture = await waiting("a")
        assert (await fetched(fixture))[0] == 0
        asked = asyncio.ensure_future(fixture.fetch({("a", 0): RECORDS}, max_wait_ms=3_600_000))
        await asyncio.sleep(0)
        assert not asked.done()
        fixture.fence(NODE)
        part = parts_of(await asyncio.wait_for(asked, PATIENCE_S))["a", 0]
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await fetched(fixture))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario())


def test_what_a_broker_that_is_gone_owes_is_above_what_is_read() -> None:
    """It alone has it; who goes on with the partition waits for its small states."""

    async def scenario() -> None:
        fixture = await waiting("a")
        for role in ROLES:
            stream_id = fixture.opener._ids[topic_id("a"), 0, role]
            known = fixture.world.catalog.streams[stream_id]
            end = known.end + 3
            fixture.publish(
                OwedRangeRecord(stream_id, known.end, end, OTHER, 1, bytes(16)),
                StreamRecord(stream_id, topic_id("a"), 0, role, 1, OTHER, 0, known.start, end),
            )
        code, end, size_bytes = await fetched(fixture)
        assert (code, end, size_bytes > 0) == (0, ABOVE, True)

    run(scenario())


def test_copies_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_copies, "COPIES_MAX", 1)

    async def scenario() -> None:
        fixture = await waiting("a", "b")
        for name in ("a", "b", "a", "b"):
            assert (await fetched(fixture, name))[:2] == (0, ABOVE)
            assert len(fixture.directory._copies._copies) == 1
            await asyncio.sleep(REST_S + 0.01)

    run(scenario(), is_virtual=True)


def test_readers_of_more_copies_than_there_may_be_open_no_more_than_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that makes way for another wakes who waits at it, who must not make that one way at once; nor does
    one Fetch for both open them until it is answered, for it never would be."""
    monkeypatch.setattr(reading_copies, "COPIES_MAX", 1)
    opened: list[str] = []

    async def open_one(leadership: Leadership, *rest: Any, **flags: Any) -> Partition:
        opened.append(leadership.topic_name)
        assert len(opened) < 10
        return await open_partition(leadership, *rest, **flags)

    monkeypatch.setattr(reading_copies, "open_partition", open_one)

    async def scenario() -> None:
        fixture = await waiting("a", "b")
        parts = parts_of(await fixture.fetch({("a", 0): 0, ("b", 0): 0}))
        codes = sorted(one.error_code for one in parts.values())
        assert codes == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert sorted(opened) == ["a", "b"]
        await asyncio.sleep(REST_S + 0.01)

        opened.clear()
        waits = [fixture.fetch({(name, 0): RECORDS}, max_wait_ms=60_000) for name in ("a", "b")]
        found = [parts_of(one) for one in await asyncio.gather(*waits)]
        codes = sorted(one.error_code for parts in found for one in parts.values())
        assert codes == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert len(opened) < 3

    run(scenario(), is_virtual=True)


def test_a_copy_that_did_not_open_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """Not at once, however often it is asked for. The log says why."""

    async def scenario() -> None:
        fixture = await waiting("a")
        objects, fixture.world.store.objects = fixture.world.store.objects, {}
        for _ in range(3):
            assert (await fetched(fixture))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        told = [one for one in caplog.records if "what objects hold of it cannot be read" in one.getMessage()]
        assert len(told) == 1
        fixture.world.store.objects = objects
        await asyncio.sleep(RETRY_S + 0.01)
        assert (await fetched(fixture))[:2] == (0, ABOVE)

    run(scenario(), is_virtual=True)


def test_a_partition_may_change_while_its_copy_opens(caplog: pytest.LogCaptureFixture) -> None:
    """Before its turn, or behind it: who waits for it is answered, and nothing is wrong."""

    async def scenario() -> None:
        fixture = await waiting("a", "b")
        store, gate = fixture.world.store, asyncio.Event()
        gets_count = store.count("get")
        found = fixture.directory.get(topic_id("a"), 0, is_reading=True)
        fixture.delete_topic("a")
        assert isinstance(found, asyncio.Future)
        await asyncio.wait([found], timeout=PATIENCE_S)
        assert isinstance(found.exception(), KafkaError)
        assert store.count("get") == gets_count

        store.fault = lambda operation, key: gate.wait()
        found = fixture.directory.get(topic_id("b"), 0, is_reading=True)
        await eventually(lambda: store.count("get") > gets_count)
        fixture.delete_topic("b")
        store.objects = {}
        gate.set()
        assert isinstance(found, asyncio.Future)
        await asyncio.wait([found], timeout=PATIENCE_S)
        assert isinstance(found.exception(), KafkaError)
        assert not caplog.records

    run(scenario(), is_virtual=True)


def test_a_partition_that_was_never_opened_whole_has_no_copy() -> None:
    """That is said at once, each time."""

    async def scenario() -> None:
        fixture = await BrokerFixture(level=OWED_RANGES_LEVEL).start()
        fixture.make_topic("a", leader=OTHER)
        fixture.publish(StreamRecord(5, topic_id("a"), 0, StreamRole.META, 1, OTHER, 1, 0, 0))
        fixture.fence(OTHER)
        fixture.publish(FailoverRecord(OTHER, NOBODY, [NODE], "it is not here"))
        for _ in range(2):
            with pytest.raises(KafkaError):
                fixture.directory.get(topic_id("a"), 0, is_reading=True)

    run(scenario())


def test_objects_that_go_while_a_copy_reads_them_are_no_damage() -> None:
    """They went with the topic, or with what its leader has deleted since."""

    async def scenario() -> None:
        fixture = await waiting("a")
        await fetched(fixture)
        fixture.engine.drop_caches()
        store, gate = fixture.world.store, asyncio.Event()
        gets_count = store.count("get")
        store.fault = lambda operation, key: gate.wait()
        asked = asyncio.ensure_future(fetched(fixture))
        await eventually(lambda: store.count("get") > gets_count)
        fixture.delete_topic("a")
        store.objects = {}
        gate.set()
        assert (await asked)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not fixture.engine.damaged

    run(scenario(), is_virtual=True)


def test_a_copy_is_waited_for_though_a_producer_waits_for_the_partition() -> None:
    """The time of that one's opening was over long ago."""

    async def scenario() -> None:
        fixture = await waiting("a")
        fixture.move("a", 0, NODE)
        await fixture.produce({("a", 0): batch()})
        await asyncio.sleep(60)
        fixture.world.store.fault = lambda operation, key: asyncio.sleep(1)
        assert (await fetched(fixture))[:2] == (0, ABOVE)

    run(scenario(), is_virtual=True)


READER, NONE = (0, NODE, False), (ErrorCode.LEADER_NOT_AVAILABLE, -1, False)


async def told(
    fixture: BrokerFixture,
    handler: Metadata,
    asked: list[MetadataRequestTopic] | None,
    to: ConnectionInfo,
    client_id: str = "consumer-1",
    *,
    may_create: bool = True,
) -> tuple[int, int, bool]:
    """By Metadata of the topic "a": the error code and the leader, and whether that is in sync."""
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=may_create)
    found = await fixture.finish(fixture.begin(handler, 3, 12, request, client_id, to), 3, 12)
    (part,) = next(topic for topic in found.topics if topic.name == "a").partitions
    return part.error_code, part.leader_id, part.leader_id in part.isr_nodes


@pytest.mark.parametrize("is_produced", [True, False])
def test_producers_are_named_no_reader(is_produced: bool) -> None:
    """Who has sent a Produce, or asked for an id. They go round partitions without a leader with what may go
    to any, and would send it there in vain. Who asks for all topics is given no reply that was made for
    others."""

    async def scenario() -> None:
        fixture = await waiting("a")
        for number in range(PARTITIONS_PER_CHUNK):
            fixture.publish(TopicRecord(f"other-{number}", topic_id(f"other-{number}")))
        (handler, _), fixture.connection, other = metadata(fixture), connection(2), connection(3)
        for asked in (named("a"), None):
            assert await told(fixture, handler, asked, fixture.connection) == READER
        if is_produced:
            await fixture.produce({("a", 0): batch()})
        else:
            await init(fixture, InitProducerId(ProducerIds(Blocks()), NO_TRANSACTIONS), 4)
        for asked in (named("a"), None):
            assert await told(fixture, handler, asked, fixture.connection) == NONE
            assert await told(fixture, handler, asked, other) == READER

    run(scenario())


@pytest.mark.parametrize(
    ("software", "client_id", "may_create", "expected"),
    [
        ("apache-kafka-java", "producer-1", True, NONE),
        ("apache-kafka-java", "consumer-billing-1", True, READER),
        ("apache-kafka-java", "billing", True, NONE),  # a producer may be called so
        ("apache-kafka-java", "adminclient-1", False, READER),
        ("apache-kafka-java", "consumer-of-orders-producer", True, NONE),
        ("confluent-kafka-python", "rdkafka", True, NONE),
        ("librdkafka", "rdkafka", False, READER),
        ("kafka-python", "kafka-python-producer-1", True, NONE),
        ("kafka-python", "kafka-python-3.0.12", True, READER),
        ("unknown", "aiokafka-producer-1", True, NONE),
        ("unknown", "aiokafka-0.14.0", True, READER),
        ("kgo", "kgo", False, NONE),  # its producers ask like that, too
    ],
)
def test_a_reader_is_named_to_who_is_called_a_consumer(
    software: str, client_id: str, may_create: bool, expected: tuple[int, int, bool]
) -> None:
    """A producer that begins has sent nothing when it asks who leads, and asks for its id by another
    connection."""

    async def scenario() -> None:
        fixture, asker = await waiting("a"), connection(2)
        handler, _ = metadata(fixture)
        asker.software_name = software
        assert await told(fixture, handler, named("a"), asker, client_id, may_create=may_create) == expected
        if not may_create:
            assert await told(fixture, handler, None, asker, client_id, may_create=False) == NONE, (
                "a list for anybody"
            )

    run(scenario())


@pytest.mark.parametrize("asked", ["Fetch", "ListOffsets", "FindCoordinator"])
def test_a_reader_is_named_to_who_asked_what_consumers_ask(asked: str) -> None:
    """However it is called; and to nobody else of that name."""

    async def scenario() -> None:
        fixture = await waiting("a")
        for number in range(PARTITIONS_PER_CHUNK):
            fixture.publish(TopicRecord(f"other-{number}", topic_id(f"other-{number}")))
        (handler, _), fixture.connection, other = metadata(fixture), connection(2), connection(3)
        for topics in (named("a"), None):
            assert await told(fixture, handler, topics, fixture.connection, "billing") == NONE
        if asked == "Fetch":
            await fetched(fixture)
        elif asked == "ListOffsets":
            await offset_at(fixture, EARLIEST)
        else:
            await find(fixture, TRANSACTION)
            assert await told(fixture, handler, named("a"), fixture.connection, "billing") == NONE
            await find(fixture, GROUP)
        for topics in (named("a"), None):
            assert await told(fixture, handler, topics, fixture.connection, "billing") == READER
            assert await told(fixture, handler, topics, other, "billing") == NONE

    run(scenario())


async def find(fixture: BrokerFixture, key_type: int) -> None:
    creation = TopicCreation(CreatingChannel(fixture), {OFFSETS_TOPIC: (1, {})}, YieldQueue())
    handler = FindCoordinator(fixture.cache, creation, NO_TRANSACTIONS)
    await fixture.ask(handler, 10, 4, FindCoordinatorRequest("", key_type, ["billing"]))


def test_nothing_is_read_for_what_no_copy_can_tell() -> None:
    """Clients ask for it again and again."""

    async def scenario() -> None:
        fixture = await waiting("a")
        await fetched(fixture)
        fixture.engine.drop_caches()
        gets_count = fixture.world.store.count("get")
        for asked in (LATEST, MAX_TIMESTAMP):
            assert await offset_at(fixture, asked) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert fixture.world.store.count("get") == gets_count

    run(scenario())


def test_copies_open_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """There may be thousands, again and again, and nothing was stopped here."""
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        fixture = await waiting("a", is_saved=False)
        assert (await fetched(fixture))[:2] == (0, ABOVE)
        copy = fixture.directory.get(topic_id("a"), 0, is_reading=True)
        assert isinstance(copy, Partition)
        assert copy.state.unsaved_bytes
        assert not caplog.records

    run(scenario())
