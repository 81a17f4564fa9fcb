"""Batches whose largest timestamp their producer left unset: as stored it is right, so times are found, and retention is told the truth."""

from __future__ import annotations

import pytest

from millrace.broker.handlers.list_offsets import ListOffsets
from millrace.broker.partitions.rewrite import SLICE_RECORDS
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
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millrace.runtime.offload import InlineOffload
from tests.broker.house import BrokerHouse, parts_of
from tests.broker.partitions.build import START_MS, batch, run

PRODUCE_VERSION = 11
DAY_MS = 86_400_000
STEP_MS = 10


def unset(view: memoryview, told: int = -1) -> memoryview:
    header = BatchHeader(view)
    return memoryview(pack_batch(header, view[HEADER_BYTES:], header.attributes, told))


async def offsets_of(house: BrokerHouse, timestamp_ms: int) -> tuple[int, int, int]:
    asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("a", [ListOffsetsPartition(0, -1, timestamp_ms)])])
    response = await house.ask(ListOffsets(house.directory, house.unpacking), 2, 7, asked)
    answer = response.topics[0].partitions[0]
    return answer.error_code, answer.offset, answer.timestamp


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
@pytest.mark.parametrize("told", [-1, START_MS - 5])
@pytest.mark.parametrize("count", [3, SLICE_RECORDS + 5])
def test_times_are_found_in_batches_that_do_not_tell_them(codec: Codec, told: int, count: int) -> None:
    """Looked into in place, and in slices; what a consumer gets says the same, under a checksum that is right."""

    async def scenario() -> None:
        house = await BrokerHouse().start()
        house.make_topic("a")
        sent = unset(batch(count, timestamp=START_MS, step_ms=STEP_MS, codec=codec), told)
        assert parts_of(await house.produce({("a", 0): sent}))["a", 0].error_code == 0
        last_ms = START_MS + (count - 1) * STEP_MS
        assert await offsets_of(house, START_MS) == (0, 0, START_MS)
        assert await offsets_of(house, last_ms) == (0, count - 1, last_ms)
        assert await offsets_of(house, last_ms + 1) == (0, -1, -1)
        assert await offsets_of(house, -3) == (0, count - 1, last_ms)
        records = memoryview(parts_of(await house.fetch({("a", 0): 0}))["a", 0].records)
        header = BatchHeader(records)
        assert header.max_timestamp == last_ms
        assert is_intact(records, header)
        assert records[HEADER_BYTES:] == sent[HEADER_BYTES:]

    run(scenario())


def test_their_age_is_that_of_their_records_after_a_kill() -> None:
    """Not of the start that read them again."""

    async def scenario() -> None:
        house = await BrokerHouse().start()
        house.make_topic("a")
        await house.produce({("a", 0): unset(batch(3))})
        house.clock.now_ms += 6 * DAY_MS
        await house.crash()
        partition = await house.partition("a")
        assert partition.state.segments.open.latest_ms == START_MS

    run(scenario())


def test_the_time_that_was_not_told_is_judged() -> None:
    """As any other: too late for the topic, it is refused, and nothing is appended."""

    async def scenario() -> None:
        house = await BrokerHouse().start()
        house.make_topic("a")
        for count in (2, SLICE_RECORDS + 5):
            sent = unset(batch(count, timestamp=START_MS, step_ms=DAY_MS))
            code = parts_of(await house.produce({("a", 0): sent}))["a", 0].error_code
            assert code == ErrorCode.INVALID_TIMESTAMP
        assert (await house.partition("a")).log_end_offset == 0

    run(scenario())


def test_where_the_time_is_the_brokers_nobody_looks() -> None:
    """The append's time is every record's, told or not."""

    async def scenario() -> None:
        house = await BrokerHouse().start()
        house.make_topic("a", message_timestamp_type="LogAppendTime")
        house.clock.now_ms += 7
        await house.produce({("a", 0): unset(batch(2, timestamp=START_MS - DAY_MS))})
        assert await offsets_of(house, -3) == (0, 0, START_MS + 7)

    run(scenario())


def test_what_comes_to_more_than_may_be_unpacked_is_taken_as_it_is() -> None:
    """Nobody but the index would have looked into it."""

    async def scenario() -> None:
        unpacking = Unpacking(InlineOffload(), 16 * MIB)
        settings = TopicSettings(rules=ProduceRules(batch_bytes_max=1 << 30))
        sent = unset(batch(1, value=bytes(unpacking.bytes_max + 1), codec=Codec.GZIP))
        assert await unpacking.recode(sent, settings, START_MS, PRODUCE_VERSION) is sent

    run(scenario())


def test_only_a_time_before_the_first_is_unset() -> None:
    """Records without timestamps tell nothing less than all."""
    assert has_unset_max_timestamp(unset(batch(2)))
    assert not has_unset_max_timestamp(batch(2))
    assert not has_unset_max_timestamp(unset(batch(1, timestamp=-1)))
    assert not has_unset_max_timestamp(unset(batch(2))[: HEADER_BYTES - 1])
