"""Produce over a real directory and engine: codes in Kafka's order, versions, acks, turns, room, repeats."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.requests.request import CLOSE, NO_REPLY, ConnectionInfo
from millrace.protocol.batches import CRC_START, BatchHeader, Codec
from millrace.protocol.crc32c import crc32c
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.protocol.metadata_records import PartitionRecord, TopicRecord
from tests.broker.broker_fixture import NODE, BrokerFixture, connection, parts_of, produce_request, topic_id
from tests.broker.partitions.build import START_MS, batch, read, run
from tests.patience import eventually
from tests.s3stream.build import World

VERSIONS = (3, 4, 5, 7, 8, 9, 10, 12, 13)


def resealed(data: bytearray) -> memoryview:
    """A batch whose header was changed, with the checksum made right again."""
    data[17:21] = crc32c(bytes(data[CRC_START:])).to_bytes(4, "big")
    return memoryview(data)


def with_byte(data: memoryview, position: int, value: int, *, is_sealed: bool = True) -> memoryview:
    changed = bytearray(data)
    changed[position] = value
    return resealed(changed) if is_sealed else memoryview(changed)


async def opened(fixture: BrokerFixture, *names: tuple[str, int]) -> None:
    for name, index in names:
        await fixture.partition(name, index)


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_for_several_partitions_are_acknowledged(version: int) -> None:
    """Base offsets, log start and time come back for each partition, by name or by id, on every version."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 2)
        fixture.make_topic("b", 1, message_timestamp_type="LogAppendTime")
        for round_number in range(2):
            response = await fixture.produce(
                {("a", 0): batch(2), ("a", 1): batch(3), ("b", 0): batch(1)}, version
            )
            parts = parts_of(response)
            assert [parts["a", 0].error_code, parts["a", 1].error_code, parts["b", 0].error_code] == [0, 0, 0]
            assert [part.base_offset for part in parts.values()] == [
                2 * round_number,
                3 * round_number,
                round_number,
            ]
            assert [part.log_append_time_ms for part in parts.values()] == [-1, -1, START_MS]
            assert {part.log_start_offset for part in parts.values()} == {0 if version >= 5 else -1}
        assert len(fixture.opener.opened) == 3

    run(scenario())


def test_an_answer_comes_once_the_slowest_batch_is_durable() -> None:
    """One future a request: not before the last of its partitions, whose batches may be in different groups
    of the WAL."""

    async def scenario() -> None:
        fixture = await BrokerFixture(World(is_auto=False)).start()
        fixture.make_topic("a", 2)
        await opened(fixture, ("a", 0), ("a", 1))
        future = fixture.begin(
            fixture.produce_handler, 0, 9, produce_request({("a", 0): batch(), ("a", 1): batch()}, 9)
        )
        fixture.world.wal.confirm(1)
        assert not future.done()
        fixture.world.wal.confirm(1)
        assert future.done()

    run(scenario())


SOUND = batch(3)
CASES: dict[str, tuple[memoryview | None, int]] = {
    "null records": (None, ErrorCode.INVALID_RECORD),
    "no records": (memoryview(b""), ErrorCode.INVALID_RECORD),
    "half a batch": (SOUND[:40], ErrorCode.INVALID_RECORD),
    "two batches": (memoryview(bytes(SOUND) * 2), ErrorCode.INVALID_RECORD),
    "old magic": (with_byte(SOUND, 16, 1, is_sealed=False), ErrorCode.INVALID_RECORD),
    "base offset": (with_byte(SOUND, 7, 1, is_sealed=False), ErrorCode.INVALID_RECORD),
    "checksum": (with_byte(SOUND, 70, 0xFF, is_sealed=False), ErrorCode.CORRUPT_MESSAGE),
    "count": (with_byte(SOUND, 60, 2), ErrorCode.INVALID_RECORD),
    "control": (with_byte(SOUND, 22, 0x20), ErrorCode.INVALID_RECORD),
    "append time": (with_byte(SOUND, 22, 0x08), ErrorCode.INVALID_TIMESTAMP),
    "unknown codec": (with_byte(SOUND, 22, 0x05), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "no sequence": (batch(1, producer_id=5, sequence=-1), ErrorCode.INVALID_RECORD),
    "future": (batch(1, timestamp=START_MS + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
    "too large": (batch(1, value=b"v" * 1_048_588), ErrorCode.MESSAGE_TOO_LARGE),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("version", [3, 8, 13])
def test_a_bad_batch_is_refused_and_its_neighbours_are_not(name: str, version: int) -> None:
    """Each fault has Kafka's code; the same request's other partition is appended; nothing of the bad one
    is."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 2)
        data, code = CASES[name]
        parts = parts_of(await fixture.produce({("a", 0): data, ("a", 1): SOUND}, version))
        assert (parts["a", 0].error_code, parts["a", 0].base_offset) == (code, -1)
        assert (parts["a", 1].error_code, parts["a", 1].base_offset) == (0, 0)
        assert (await fixture.partition("a", 0)).log_end_offset == 0

    run(scenario())


def test_bounds_follow_the_topics_configuration() -> None:
    """max.message.bytes, segment.bytes and the timestamps' bounds hold as configured, and change without
    reopening."""

    async def scenario() -> None:
        fixture = await BrokerFixture(static={"message.max.bytes": "500"}).start()
        fixture.make_topic("a")
        fixture.make_topic(
            "b", max_message_bytes="2000", segment_bytes="1000", message_timestamp_before_max_ms="1000"
        )
        large = batch(1, value=b"v" * 600)
        parts = parts_of(await fixture.produce({("a", 0): large, ("b", 0): large}))
        assert [part.error_code for part in parts.values()] == [ErrorCode.MESSAGE_TOO_LARGE, 0]
        parts = parts_of(await fixture.produce({("b", 0): batch(1, value=b"v" * 1200)}))
        assert parts["b", 0].error_code == ErrorCode.RECORD_LIST_TOO_LARGE
        parts = parts_of(await fixture.produce({("b", 0): batch(1, timestamp=START_MS - 1001)}))
        assert parts["b", 0].error_code == ErrorCode.INVALID_TIMESTAMP
        fixture.set_config("a", "max.message.bytes", "5000")
        assert parts_of(await fixture.produce({("a", 0): large}))["a", 0].error_code == 0
        fixture.set_config("a", "max.message.bytes", None)
        assert (
            parts_of(await fixture.produce({("a", 0): large}))["a", 0].error_code
            == ErrorCode.MESSAGE_TOO_LARGE
        )
        assert len(fixture.opener.opened) == 2

    run(scenario())


@pytest.mark.parametrize(("version", "code"), [(6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, 0)])
def test_zstd_needs_version_7(version: int, code: int) -> None:
    """Older clients could not read it."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        parts = parts_of(await fixture.produce({("a", 0): batch(1, codec=Codec.ZSTD)}, version))
        assert parts["a", 0].error_code == code

    run(scenario())


@pytest.mark.parametrize("version", [3, 8, 12, 13])
def test_unknown_places_have_their_codes(version: int) -> None:
    """Names and ids nobody has, partitions that are not there, topics of the broker's own."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        fixture.make_topic("__consumer_offsets")
        wanted = {("a", 0): SOUND, ("a", 1): SOUND, ("none", 0): SOUND, ("__consumer_offsets", 0): SOUND}
        parts = parts_of(await fixture.produce(wanted, version))
        codes = {key: part.error_code for key, part in parts.items()}
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        internal = next(key for key in codes if key[0].startswith("__consumer"))
        assert codes.pop(internal) == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert codes == {("a", 0): 0, ("a", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ("none", 0): unknown}

    run(scenario())


def test_the_admin_client_may_write_internal_topics() -> None:
    """By its client id, as in Kafka."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("__consumer_offsets")
        request = produce_request({("__consumer_offsets", 0): SOUND}, 9)
        response = await fixture.ask(fixture.produce_handler, 0, 9, request, "__admin_client")
        assert parts_of(response)["__consumer_offsets", 0].error_code == 0

    run(scenario())


@pytest.mark.parametrize("version", [9, 10, 13])
def test_who_does_not_lead_says_who_does(version: int) -> None:
    """NOT_LEADER_OR_FOLLOWER, from version 10 on with the leader, its epoch and its address on the client's
    listener."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 2, leader=2)
        response = await fixture.produce({("a", 0): SOUND, ("a", 1): SOUND}, version)
        for part in parts_of(response).values():
            assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            leader = (part.current_leader.leader_id, part.current_leader.leader_epoch)
            assert leader == ((2, 0) if version >= 10 else (-1, -1))
        nodes = [(node.node_id, node.host, node.port) for node in response.node_endpoints]
        assert nodes == ([(2, "host2", 9092)] if version >= 10 else [])

    run(scenario())


def test_nobody_is_sent_to_a_leader_that_is_gone() -> None:
    """As in Metadata, nobody leads what a fenced broker did: its address is not told."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", leader=2)
        fixture.fence(2)
        response = await fixture.produce({("a", 0): SOUND}, 10)
        (part,) = parts_of(response).values()
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (-1, 0)
        assert not response.node_endpoints

    run(scenario())


def test_a_partition_that_moved_away_is_refused_from_that_moment() -> None:
    """An open partition takes nothing once the image says that another leads, and takes again when it comes
    back."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        await fixture.produce({("a", 0): SOUND})
        fixture.move("a", 0, 2)
        parts = parts_of(await fixture.produce({("a", 0): SOUND}, 10))
        assert parts["a", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert parts["a", 0].current_leader.leader_epoch == 1
        fixture.move("a", 0, 1)
        parts = parts_of(await fixture.produce({("a", 0): SOUND}))
        assert (parts["a", 0].error_code, parts["a", 0].base_offset) == (0, 3)
        assert (await fixture.partition("a")).leader_epoch == 2

    run(scenario())


@pytest.mark.parametrize("acks", [-2, 2, 127])
def test_other_acks_are_refused(acks: int) -> None:
    """Only -1, 0 and 1 mean something."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        parts = parts_of(await fixture.produce({("a", 0): SOUND}, acks=acks))
        assert parts["a", 0].error_code == ErrorCode.INVALID_REQUIRED_ACKS
        assert fixture.opener.opened == []

    run(scenario())


def test_acks_0_is_never_answered() -> None:
    """Not before durability, not after it; what was sent is appended all the same."""

    async def scenario() -> None:
        fixture = await BrokerFixture(World(is_auto=False)).start()
        fixture.make_topic("a")
        parked = fixture.begin(fixture.produce_handler, 0, 9, produce_request({("a", 0): SOUND}, 9, acks=0))
        assert await asyncio.shield(parked) is NO_REPLY
        assert (
            fixture.begin(fixture.produce_handler, 0, 9, produce_request({("a", 0): SOUND}, 9, acks=0))
            is NO_REPLY
        )
        fixture.world.wal.confirm()
        assert (await fixture.partition("a")).high_watermark == 6

    run(scenario())


def test_acks_0_closes_the_connection_on_any_error() -> None:
    """The client has no other way to learn of it; what was sound in the request is appended."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        fixture.make_topic("away", leader=2)
        assert await fixture.produce({("a", 0): SOUND, ("away", 0): SOUND}, acks=0) is CLOSE
        assert await fixture.produce({("a", 0): memoryview(b"")}, acks=0) is CLOSE
        assert await fixture.produce({("a", 0): SOUND}, acks=0, transactional_id="t") is CLOSE
        await fixture.settle()
        assert (await fixture.partition("a")).high_watermark == 3

    run(scenario())


@pytest.mark.parametrize("version", [3, 9, 12, 13])
def test_transactions_are_refused_whole(version: int) -> None:
    """A transactional id, or a transactional batch anywhere, refuses every partition with a code that is not
    retried."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 2)
        marked = batch(1, producer_id=5, sequence=0, is_transactional=True)
        for fields, data in (({"transactional_id": "t"}, SOUND), ({}, marked)):
            parts = parts_of(await fixture.produce({("a", 0): SOUND, ("a", 1): data}, version, **fields))
            codes = {part.error_code for part in parts.values()}
            assert codes == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
        assert not ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED.retriable
        assert (await fixture.partition("a", 0)).log_end_offset == 0

    run(scenario())


@pytest.mark.parametrize("version", [5, 8])
def test_a_compacted_topic_names_the_records_to_blame(version: int) -> None:
    """From version 8 on the answer says which records have no key."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", cleanup_policy="compact")
        (part,) = parts_of(await fixture.produce({("a", 0): SOUND}, version)).values()
        assert part.error_code == ErrorCode.INVALID_RECORD
        assert [error.batch_index for error in part.record_errors] == ([0, 1, 2] if version >= 8 else [])
        assert bool(part.error_message) == (version >= 8)
        (part,) = parts_of(await fixture.produce({("a", 0): batch(1, key=b"k")}, version)).values()
        assert part.error_code == 0

    run(scenario())


def test_an_empty_request_is_answered() -> None:
    """No topics, or a topic without partitions: nothing to do, nothing to wait for."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        assert (
            await fixture.ask(fixture.produce_handler, 0, 9, ProduceRequest(None, -1, 1000, []))
        ).responses == []
        request = ProduceRequest(None, -1, 1000, [TopicProduceData("a", topic_id("a"), [])])
        assert len((await fixture.ask(fixture.produce_handler, 0, 9, request)).responses) == 1

    run(scenario())


def test_one_partition_twice_in_a_request_is_two_batches() -> None:
    """They are appended in the order of the request, open or not."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        for expected in ([0, 1], [3, 4]):
            data = [PartitionProduceData(0, batch(1)), PartitionProduceData(0, batch(2))]
            request = ProduceRequest(None, -1, 1000, [TopicProduceData("a", topic_id("a"), data)])
            response = await fixture.ask(fixture.produce_handler, 0, 9, request)
            assert [part.base_offset for part in response.responses[0].partition_responses] == expected

    run(scenario())


# -- repeats


def test_a_repeat_is_answered_like_the_original_and_not_before_it_is_durable() -> None:
    """A retry that overtakes the first answer waits with it; one that comes later is answered at once, with
    the same offsets."""

    async def scenario() -> None:
        fixture = await BrokerFixture(World(is_auto=False)).start()
        fixture.make_topic("a")
        await opened(fixture, ("a", 0))
        request = produce_request({("a", 0): batch(4, producer_id=9, sequence=0)}, 9)
        first = fixture.begin(fixture.produce_handler, 0, 9, request)
        second = fixture.begin(fixture.produce_handler, 0, 9, request, to=connection(2))
        assert not first.done()
        assert not second.done()
        fixture.world.wal.confirm()
        for outcome in (first, second, fixture.begin(fixture.produce_handler, 0, 9, request)):
            part = parts_of(await fixture.finish(outcome, 0, 9))["a", 0]
            assert (part.error_code, part.base_offset, part.log_start_offset) == (0, 0, 0)
        assert (await fixture.partition("a")).log_end_offset == 4

    run(scenario())


def test_a_repeat_after_a_crash_is_known() -> None:
    """The answer was lost with the broker: the retry at the next process gets the offsets of the first
    time."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        data = batch(4, producer_id=9, sequence=0)
        await fixture.produce({("a", 0): SOUND})
        await fixture.produce({("a", 0): data})
        await fixture.crash()
        part = parts_of(await fixture.produce({("a", 0): data}))["a", 0]
        assert (part.error_code, part.base_offset) == (0, 3)
        assert (await fixture.partition("a")).log_end_offset == 7

    run(scenario())


def test_pipelined_batches_out_of_order_are_told_apart() -> None:
    """A gap is OUT_OF_ORDER_SEQUENCE_NUMBER, an old epoch INVALID_PRODUCER_EPOCH, a repeat older than the
    window out of order."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")

        async def send(sequence: int, epoch: int = 0) -> int:
            data = batch(1, producer_id=9, epoch=epoch, sequence=sequence)
            return int(parts_of(await fixture.produce({("a", 0): data}))["a", 0].error_code)

        assert [await send(number) for number in range(7)] == [0] * 7
        assert await send(8) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await send(2) == 0
        assert await send(1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await send(5, epoch=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await send(0, epoch=1) == 0
        assert await send(7) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await fixture.partition("a")).log_end_offset == 8

    run(scenario())


# -- turns and room


def test_requests_keep_their_order_while_a_partition_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent to a partition that is not open stands in line; other partitions are served meanwhile."""
    monkeypatch.setattr("millrace.broker.handlers.produce.TIMEOUT_MS_MIN", 20)

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("cold")
        fixture.make_topic("warm")
        await opened(fixture, ("warm", 0))
        fixture.opener.gate = asyncio.Event()
        sent = [batch(1, producer_id=9, sequence=number) for number in range(5)]
        waiting: list[Any] = []
        for number, data in enumerate(sent):
            wanted = {("cold", 0): data} | ({("warm", 0): batch(1)} if number == 2 else {})
            waiting.append(fixture.begin(fixture.produce_handler, 0, 9, produce_request(wanted, 9)))
        assert (
            parts_of(await fixture.produce({("cold", 0): batch(1)}, timeout_ms=1))["cold", 0].error_code == 7
        )
        behind = fixture.begin(fixture.produce_handler, 0, 9, produce_request({("warm", 0): batch(2)}, 9))
        assert not behind.done()
        fixture.make_topic("other")
        assert len(fixture.opener.opened) == 2
        fixture.opener.gate.set()
        answers = [parts_of(await fixture.finish(outcome, 0, 9)) for outcome in waiting]
        assert [answer["cold", 0].base_offset for answer in answers] == [0, 1, 2, 3, 4]
        assert {answer["cold", 0].error_code for answer in answers} == {0}
        assert answers[2]["warm", 0].base_offset == 0
        assert parts_of(await fixture.finish(behind, 0, 9))["warm", 0].base_offset == 1

    run(scenario())


def test_a_partition_that_does_not_open_refuses_what_waits_for_it() -> None:
    """The refusal is the opener's; it is not asked again at once; what else the requests hold is appended."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("bad")
        fixture.make_topic("good")
        fixture.opener.error = KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        parts = parts_of(await fixture.produce({("bad", 0): SOUND}))
        assert parts["bad", 0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        fixture.opener.error = None
        parts = parts_of(await fixture.produce({("bad", 0): SOUND, ("good", 0): SOUND}))
        assert [part.error_code for part in parts.values()] == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]
        assert len(fixture.opener.opened) == 2

    run(scenario())


@pytest.mark.parametrize("version", [9, 13])
def test_what_a_producer_sent_behind_a_refused_batch_waits_for_it(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that knows nothing of a producer takes any sequence first: what was on its way when the
    first batch was refused would stand before it, and the first be refused for ever. Other producers and
    connections, and a new epoch, are not held."""
    monkeypatch.setattr("millrace.broker.partitions.directory.RETRY_MS", 0)

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        fixture.opener.error = KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        here = connection(7)

        async def send(
            sequence: int, producer_id: int = 9, epoch: int = 0, from_: ConnectionInfo = here
        ) -> tuple[int, int]:
            data = batch(2, producer_id=producer_id, epoch=epoch, sequence=sequence)
            asked = produce_request({("a", 0): data}, version)
            begun = fixture.begin(fixture.produce_handler, 0, version, asked, to=from_)
            [answer] = parts_of(await fixture.finish(begun, 0, version)).values()
            return answer.error_code, answer.base_offset

        assert (await send(0))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await send(2))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await send(0, producer_id=10))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        fixture.opener.error = None
        assert (await send(4))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await send(0, producer_id=11) == (0, 0)
        assert (await send(2))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert [await send(sequence) for sequence in (0, 2, 4)] == [(0, 2), (0, 4), (0, 6)]
        assert here.gaps is not None
        assert len(here.gaps) == 1  # the other producer's
        assert (await send(2, producer_id=10))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await send(0, producer_id=10, epoch=1) == (0, 8)
        assert not here.gaps
        assert await send(6, producer_id=12, from_=connection(8)) == (0, 10)

    run(scenario())


async def send_one(
    fixture: BrokerFixture, here: ConnectionInfo, sequence: int, version: int = 9
) -> tuple[int, int]:
    """One record of producer 9 to partition 0 of topic a."""
    asked = produce_request({("a", 0): batch(1, producer_id=9, sequence=sequence)}, version)
    begun = fixture.begin(fixture.produce_handler, 0, version, asked, to=here)
    [answer] = parts_of(await fixture.finish(begun, 0, version)).values()
    return answer.error_code, answer.base_offset


@pytest.mark.parametrize("version", [9, 13])
def test_a_producer_that_wrote_elsewhere_meanwhile_goes_on(version: int) -> None:
    """The partition moved away and came back: what was refused on this connection is in the log by another,
    and so is what came after it. A repeat of it is answered with the original's offset."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        here, there = connection(7), connection(8)
        assert await send_one(fixture, here, 0, version) == (0, 0)
        fixture.move("a", 0, 2)
        assert (await send_one(fixture, here, 1, version))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        fixture.move("a", 0, NODE)
        assert [await send_one(fixture, there, sequence, version) for sequence in (1, 2)] == [(0, 1), (0, 2)]
        assert [await send_one(fixture, here, sequence, version) for sequence in (2, 3)] == [(0, 2), (0, 3)]

    run(scenario())


def test_what_was_lost_with_its_log_is_missing_before_what_comes_after_it() -> None:
    """A batch on its way to the WAL when its topic was deleted and made anew: the next one may not be the
    first of the new log."""

    async def scenario() -> None:
        fixture = await BrokerFixture(World(is_auto=False)).start()
        fixture.make_topic("a")
        here = connection(7)
        await fixture.partition("a")
        asked = produce_request({("a", 0): batch(1, producer_id=9, sequence=0)}, 9)
        begun = fixture.begin(fixture.produce_handler, 0, 9, asked, to=here)
        fixture.delete_topic("a")
        await asyncio.sleep(0)
        fixture.world.wal.confirm()
        [lost] = parts_of(await fixture.finish(begun, 0, 9)).values()
        assert lost.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        fixture.world.wal.is_auto = True
        anew = b"anew".ljust(16, b"!")
        fixture.publish(
            TopicRecord("a", anew),
            PartitionRecord(0, anew, [NODE], [NODE], leader=NODE, leader_epoch=0, partition_epoch=0),
        )
        assert (await send_one(fixture, here, 1))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert [await send_one(fixture, here, sequence) for sequence in (0, 1)] == [(0, 0), (0, 1)]

    run(scenario())


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.NOT_LEADER_OR_FOLLOWER), (4, ErrorCode.KAFKA_STORAGE_ERROR)]
)
def test_a_partition_with_broken_state_is_a_storage_error(version: int, code: int) -> None:
    """Said so from version 4 on; it does not take the broker down, nor other partitions."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        partition = await fixture.partition("a")
        partition.meta.stream.append(1, [b"nonsense"])
        await fixture.settle()
        await fixture.crash()
        parts = parts_of(await fixture.produce({("a", 0): SOUND}, version))
        assert parts["a", 0].error_code == code
        assert fixture.world.failures == []

    run(scenario())


def full_fixture() -> BrokerFixture:
    return BrokerFixture(World(wal_bytes=300_000), upload_threshold_bytes=10**9)


def test_without_room_requests_wait_in_order_and_lose_nothing() -> None:
    """The WAL is full and the store is away: no offset is given; when it comes back all are served in the
    order of their arrival, a small one behind a large one too, and repeats are still repeats."""

    async def scenario() -> None:
        fixture = await full_fixture().start()
        fixture.make_topic("a", 2)
        await opened(fixture, ("a", 0), ("a", 1))
        away = asyncio.Event()

        async def wait_for_store() -> None:
            await away.wait()

        fixture.world.store.fault = lambda operation, key: wait_for_store()
        sent = [batch(1, producer_id=9, sequence=number, value=b"v" * 20_000) for number in range(30)]
        waiting = [
            fixture.begin(fixture.produce_handler, 0, 9, produce_request({("a", 0): data}, 9))
            for data in sent
        ]
        small = fixture.begin(fixture.produce_handler, 0, 9, produce_request({("a", 0): batch(1)}, 9))
        aside = fixture.begin(fixture.produce_handler, 0, 9, produce_request({("a", 1): batch(1)}, 9))
        repeat = fixture.begin(fixture.produce_handler, 0, 9, produce_request({("a", 0): sent[-1]}, 9))
        partition = await fixture.partition("a")
        await eventually(lambda: partition.log_end_offset > 2)
        await asyncio.sleep(0.05)
        assert partition.log_end_offset < 20
        assert sum(outcome.done() for outcome in waiting) == partition.log_end_offset
        away.set()
        offsets = [parts_of(await fixture.finish(outcome, 0, 9))["a", 0].base_offset for outcome in waiting]
        assert offsets == list(range(30))
        assert parts_of(await fixture.finish(small, 0, 9))["a", 0].base_offset == 30
        assert parts_of(await fixture.finish(aside, 0, 9))["a", 1].base_offset == 0
        assert parts_of(await fixture.finish(repeat, 0, 9))["a", 0].base_offset == 29
        assert fixture.world.failures == []

    run(scenario())


def test_room_is_made_sure_of_for_what_is_stored() -> None:
    """A topic that keeps batches uncompressed may need more than was sent: it is asked for before, never
    found missing after."""

    async def scenario() -> None:
        fixture = await full_fixture().start()
        fixture.make_topic("a", compression_type="uncompressed", max_message_bytes="60000")
        await opened(fixture, ("a", 0))
        data = batch(1, codec=Codec.GZIP, value=b"v" * 50_000)
        assert len(data) < 1000
        for expected in range(12):
            (part,) = parts_of(await fixture.produce({("a", 0): data})).values()
            assert (part.error_code, part.base_offset) == (0, expected)

    run(scenario())


def test_a_request_that_waits_too_long_for_room_is_told_so_and_appends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """REQUEST_TIMED_OUT; sent again later it is appended once. acks=0 closes the connection instead."""
    monkeypatch.setattr("millrace.broker.handlers.produce.TIMEOUT_MS_MIN", 20)

    async def scenario() -> None:
        fixture = await full_fixture().start()
        fixture.make_topic("a")
        await opened(fixture, ("a", 0))
        away = asyncio.Event()

        async def wait_for_store() -> None:
            await away.wait()

        fixture.world.store.fault = lambda operation, key: wait_for_store()
        large = batch(1, value=b"v" * 20_000)
        while fixture.engine.room_bytes >= len(large) + 640:
            await fixture.produce({("a", 0): large})
        data = batch(1, producer_id=9, sequence=0, value=b"v" * 20_000)
        end = (await fixture.partition("a")).log_end_offset
        late = fixture.begin(
            fixture.produce_handler, 0, 9, produce_request({("a", 0): data}, 9, timeout_ms=1)
        )
        silent = fixture.begin(
            fixture.produce_handler, 0, 9, produce_request({("a", 0): data}, 9, timeout_ms=1, acks=0)
        )
        assert parts_of(await fixture.finish(late, 0, 9))["a", 0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert await fixture.finish(silent, 0, 9) is CLOSE
        assert (await fixture.partition("a")).log_end_offset == end
        away.set()
        part = parts_of(await fixture.produce({("a", 0): data}))["a", 0]
        assert (part.error_code, part.base_offset) == (0, end)

    run(scenario())


def test_a_request_that_never_fits_is_too_large() -> None:
    """Waiting would last for ever: the producer is told to send less."""

    async def scenario() -> None:
        fixture = await full_fixture().start()
        fixture.make_topic("a", 4)
        for index in range(4):
            await fixture.produce(
                {("a", index): SOUND}
            )  # what waits to be opened goes partition by partition
        wanted = {("a", index): batch(1, value=b"v" * 90_000) for index in range(4)}
        parts = parts_of(await fixture.produce(wanted))
        assert {part.error_code for part in parts.values()} == {ErrorCode.MESSAGE_TOO_LARGE}
        parts = parts_of(await fixture.produce({("a", 0): wanted["a", 0]}))
        assert parts["a", 0].error_code == 0

    run(scenario())


def test_what_waits_is_judged_again_when_its_turn_comes() -> None:
    """While a request waited its partition moved, its topic was deleted, or its configuration changed: the
    new state holds."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        for name in ("moved", "deleted", "narrowed"):
            fixture.make_topic(name)
        fixture.opener.gate = asyncio.Event()
        wanted = {(name, 0): SOUND for name in ("moved", "deleted", "narrowed")}
        by_name = fixture.begin(fixture.produce_handler, 0, 12, produce_request(wanted, 12))
        by_id = fixture.begin(fixture.produce_handler, 0, 13, produce_request(wanted, 13))
        await asyncio.sleep(0)
        fixture.move("moved", 0, 2)
        fixture.delete_topic("deleted")
        fixture.set_config("narrowed", "max.message.bytes", "10")
        fixture.opener.gate.set()
        for version, outcome, gone in (
            (12, by_name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (13, by_id, ErrorCode.UNKNOWN_TOPIC_ID),
        ):
            parts = parts_of(await fixture.finish(outcome, 0, version))
            codes = {name: part.error_code for (name, _), part in parts.items()}
            assert codes["moved"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert codes["deleted"] == gone
            assert codes["narrowed"] == ErrorCode.MESSAGE_TOO_LARGE
            assert parts["moved", 0].current_leader.leader_id == 2

    run(scenario())


def test_what_is_in_flight_when_its_topic_is_deleted_is_not_acknowledged() -> None:
    """The streams are void by then: the client is told to look at the metadata, never that its records are
    kept."""

    async def scenario() -> None:
        fixture = await BrokerFixture(World(is_auto=False)).start()
        fixture.make_topic("a")
        await opened(fixture, ("a", 0))
        outcome = fixture.begin(fixture.produce_handler, 0, 9, produce_request({("a", 0): SOUND}, 9))
        fixture.delete_topic("a")
        await asyncio.sleep(0)
        fixture.world.wal.confirm()
        parts = parts_of(await fixture.finish(outcome, 0, 9))
        assert (parts["a", 0].error_code, parts["a", 0].base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        fixture.make_topic("a")
        fixture.world.wal.is_auto = True

    run(scenario())


def test_batches_are_stored_with_the_epoch_and_offset_that_were_given() -> None:
    """What a reader gets is the producer's batch with base offset and leader epoch, nothing else changed."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        fixture.move("a", 0, 1)
        data = batch(5, producer_id=3, sequence=0, codec=Codec.LZ4)
        await fixture.produce({("a", 0): SOUND})
        await fixture.produce({("a", 0): data})
        _, stored = await read(await fixture.partition("a"))
        header = BatchHeader(stored)
        assert (header.base_offset, header.leader_epoch) == (3, 1)
        assert bytes(stored[16:]) == bytes(data[16:])

    run(scenario())


def test_a_refusal_of_the_dispatcher_names_every_partition() -> None:
    """When anything unforeseen happens the client still gets an answer it can read."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        request = produce_request({("a", 0): SOUND, ("b", 3): SOUND}, 9)
        response = fixture.produce_handler.refuse(request, ErrorCode.UNKNOWN_SERVER_ERROR)
        assert [(key, part.error_code) for key, part in parts_of(response).items()] == [
            (("a", 0), -1),
            (("b", 3), -1),
        ]

    run(scenario())
