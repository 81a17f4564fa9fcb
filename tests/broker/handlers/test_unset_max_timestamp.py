"""Batches whose largest timestamp their producer left unset: as stored it is right, so times are found, and
retention is told the truth."""

from __future__ import annotations

import pytest

from millrace.broker.handlers.list_offsets import ListOffsets
from millrace.broker.partitions.rewrite import CHUNK_RECORDS
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.unpacking import MIB, Unpacking
from millrace.protocol.batches import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    ProduceRules,
    has_unset_max_timestamp,
    is_intact,
    pack_batch,
)
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millrace.runtime.offload import InlineOffload
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.broker_fixture import BrokerFixture, parts_of
from tests.broker.partitions.build import START_MS, batch, run
from tests.live.stamped import headers_of_clients, stamped

PRODUCE_VERSION = 11
DAY_MS = 86_400_000
STEP_MS = 10


def unset(view: memoryview, told: int = -1) -> memoryview:
    header = BatchHeader(view)
    return memoryview(pack_batch(header, view[HEADER_BYTES:], header.attributes, told))


async def offsets_of(fixture: BrokerFixture, timestamp_ms: int) -> tuple[int, int, int]:
    asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("a", [ListOffsetsPartition(0, -1, timestamp_ms)])])
    response = await fixture.ask(ListOffsets(fixture.directory, fixture.unpacking), 2, 7, asked)
    answer = response.topics[0].partitions[0]
    return answer.error_code, answer.offset, answer.timestamp


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
@pytest.mark.parametrize("told", [-1, START_MS - 5])
@pytest.mark.parametrize("count", [3, CHUNK_RECORDS + 5])
def test_times_are_found_in_batches_that_do_not_tell_them(codec: Codec, told: int, count: int) -> None:
    """Looked into in place, and in chunks; what a consumer gets says the same, under a checksum that is
    right."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        sent = unset(batch(count, timestamp=START_MS, step_ms=STEP_MS, codec=codec), told)
        assert parts_of(await fixture.produce({("a", 0): sent}))["a", 0].error_code == 0
        last_ms = START_MS + (count - 1) * STEP_MS
        assert await offsets_of(fixture, START_MS) == (0, 0, START_MS)
        assert await offsets_of(fixture, last_ms) == (0, count - 1, last_ms)
        assert await offsets_of(fixture, last_ms + 1) == (0, -1, -1)
        assert await offsets_of(fixture, -3) == (0, count - 1, last_ms)
        records = memoryview(parts_of(await fixture.fetch({("a", 0): 0}))["a", 0].records)
        header = BatchHeader(records)
        assert header.max_timestamp == last_ms
        assert is_intact(records, header)
        assert records[HEADER_BYTES:] == sent[HEADER_BYTES:]

    run(scenario())


def test_their_age_is_that_of_their_records_after_a_kill() -> None:
    """Not of the start that read them again."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        await fixture.produce({("a", 0): unset(batch(3))})
        fixture.clock.now_ms += 6 * DAY_MS
        await fixture.crash()
        partition = await fixture.partition("a")
        assert partition.state.segments.open.latest_ms == START_MS

    run(scenario())


def test_the_time_that_was_not_told_is_judged() -> None:
    """As any other: too late for the topic, it is refused, and nothing is appended."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        for count in (2, CHUNK_RECORDS + 5):
            sent = unset(batch(count, timestamp=START_MS, step_ms=DAY_MS))
            code = parts_of(await fixture.produce({("a", 0): sent}))["a", 0].error_code
            assert code == ErrorCode.INVALID_TIMESTAMP
        assert (await fixture.partition("a")).log_end_offset == 0

    run(scenario())


def test_where_the_time_is_the_brokers_nobody_looks() -> None:
    """The append's time is every record's, told or not."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", message_timestamp_type="LogAppendTime")
        fixture.clock.now_ms += 7
        await fixture.produce({("a", 0): unset(batch(2, timestamp=START_MS - DAY_MS))})
        assert await offsets_of(fixture, -3) == (0, 0, START_MS + 7)

    run(scenario())


@pytest.mark.parametrize(
    ("base", "told", "stored"),
    [(START_MS, -1, START_MS), (-1, 0, -1), (-1, START_MS, START_MS), (-7000, -5, -1)],
)
def test_what_comes_to_more_than_may_be_unpacked_is_never_as_old_as_the_epoch(
    base: int, told: int, stored: int
) -> None:
    """Nobody but the index would have looked into it: the best guess of its header is stored."""

    async def scenario() -> None:
        unpacking = Unpacking(InlineOffload(), 16 * MIB, YieldQueue())
        settings = TopicSettings(rules=ProduceRules(batch_bytes_max=1 << 30))
        sent = memoryview(stamped(base, told, [base], Codec.GZIP, bytes(unpacking.bytes_max + 1)))
        stored_batch = await unpacking.recode(sent, settings, START_MS, PRODUCE_VERSION)
        header = BatchHeader(stored_batch)
        assert header.max_timestamp == stored
        assert is_intact(stored_batch, header)

    run(scenario())


def test_what_kafka_computes_is_stored() -> None:
    """Every form of header that clients write (tests/compat/test_timestamps.py holds the same ones against
    Apache Kafka): the largest of the records' times, and none where there is none."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        for number, (base, told, times) in enumerate(headers_of_clients(START_MS).values()):
            for codec in (Codec.NONE, Codec.GZIP):
                name = f"t{number}{codec.name}"
                fixture.make_topic(name)
                sent = memoryview(stamped(base, told, times, codec))
                assert parts_of(await fixture.produce({(name, 0): sent}))[name, 0].error_code == 0
                header = BatchHeader(
                    memoryview(parts_of(await fixture.fetch({(name, 0): 0}))[name, 0].records)
                )
                assert (header.base_timestamp, header.max_timestamp) == (base, max(-1, *times))

    run(scenario())


@pytest.mark.parametrize("count", [2, CHUNK_RECORDS + 5])
def test_each_time_is_judged_where_all_are_looked_at(count: int) -> None:
    """One behind a first record that has none."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", message_timestamp_before_max_ms=str(DAY_MS))
        for time in (START_MS - 2 * DAY_MS, START_MS + 2 * DAY_MS):
            sent = memoryview(stamped(-1, 0, [-1] * (count - 2) + [time, -1]))
            code = parts_of(await fixture.produce({("a", 0): sent}))["a", 0].error_code
            assert code == ErrorCode.INVALID_TIMESTAMP
        assert (await fixture.partition("a")).log_end_offset == 0

    run(scenario())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("count", [2, CHUNK_RECORDS + 5])
@pytest.mark.parametrize("last_ms", [-1, START_MS - 5])
def test_a_largest_time_that_was_left_out_is_not_judged(last_ms: int, count: int, codec: Codec) -> None:
    """0 is not a time of 1970 where the header cannot be right: only the records' times are held to the
    topic's bounds, as by Kafka."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", message_timestamp_before_max_ms=str(DAY_MS))
        sent = memoryview(stamped(-1, 0, [-1] * (count - 1) + [last_ms], codec))
        assert parts_of(await fixture.produce({("a", 0): sent}))["a", 0].error_code == 0
        header = BatchHeader(memoryview(parts_of(await fixture.fetch({("a", 0): 0}))["a", 0].records))
        assert (header.base_timestamp, header.max_timestamp) == (-1, last_ms)

    run(scenario())


def test_a_guess_is_judged() -> None:
    """What comes to more than may be unpacked is held to the bounds by what is stored of it."""

    async def scenario() -> None:
        unpacking = Unpacking(InlineOffload(), 16 * MIB, YieldQueue())
        settings = TopicSettings(rules=ProduceRules(batch_bytes_max=1 << 30, timestamp_before_max_ms=DAY_MS))
        value = bytes(unpacking.bytes_max + 1)
        for base, told in (
            (START_MS - 2 * DAY_MS, -1),
            (-1, START_MS + 2 * DAY_MS),
            (-1, START_MS - 2 * DAY_MS),
        ):
            sent = memoryview(stamped(base, told, [base], Codec.GZIP, value))
            with pytest.raises(KafkaError) as refused:
                await unpacking.recode(sent, settings, START_MS, PRODUCE_VERSION)
            assert refused.value.code == ErrorCode.INVALID_TIMESTAMP
        taken = await unpacking.recode(
            memoryview(stamped(-1, 0, [-1], Codec.GZIP, value)), settings, START_MS, PRODUCE_VERSION
        )
        assert BatchHeader(taken).max_timestamp == -1

    run(scenario())


def test_records_without_a_timestamp_age_from_their_append() -> None:
    """Told as none, or as 0: kept for the retention, also over a kill, and then they go; the largest time of
    such a log is its first record's, none."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        fixture.make_topic("b")
        for name, told in (("a", 0), ("b", -1)):
            await fixture.produce({(name, 0): memoryview(stamped(-1, told, [-1, -1]))})
        for is_killed in (False, True):
            if is_killed:
                await fixture.crash()
            for name in ("a", "b"):
                partition = await fixture.partition(name)
                assert partition.state.segments.open.latest_ms == START_MS
                assert partition.state.segments.plan_retention(START_MS + DAY_MS, DAY_MS, -1, 2) == 0
                assert partition.state.segments.plan_retention(START_MS + DAY_MS + 1, DAY_MS, -1, 2) == 2
        asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("a", [ListOffsetsPartition(0, -1, -3)])])
        response = await fixture.ask(ListOffsets(fixture.directory, fixture.unpacking), 2, 7, asked)
        answer = response.topics[0].partitions[0]
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, 0, -1)

    run(scenario())


def test_a_header_that_cannot_be_right() -> None:
    """A largest time before the first, or a first below 0."""
    assert has_unset_max_timestamp(unset(batch(2)))
    assert not has_unset_max_timestamp(batch(2))
    assert has_unset_max_timestamp(batch(1, timestamp=-1))
    assert not has_unset_max_timestamp(memoryview(stamped(0, 0, [0])))
    assert not has_unset_max_timestamp(unset(batch(2))[: HEADER_BYTES - 1])
