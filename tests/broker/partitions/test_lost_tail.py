"""The write-ahead log gave up the end of a stream, and what was stored later tells of it still: the rest is
served, and nothing of it comes back.

A real engine recovers a log from which the records of one stream were taken, as `wal.corruption=skip` leaves
it; the leader epoch was raised.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millrace.broker.partitions.opening import StateCorrupt
from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.time_lookup import Lookups
from millrace.protocol.batches import ProduceRules
from millrace.protocol.errors import KafkaError
from millrace.s3stream.objects.format import EntryHeader, decode_entry
from tests.broker.partitions.build import START_MS, Fixture, batch, read, run

HOT_ONLY = {"test_without_a_new_epoch_it_is_damage": "reads nothing"}
META, DATA, TIME = 0, 1, 2
PRODUCER, OTHER = 7, 8
SETTINGS = TopicSettings(index_interval_bytes=100)


async def crash_losing(fixture: Fixture, is_lost: Callable[[EntryHeader], bool]) -> None:
    """The process ends, and the next one does not find these records in the log."""
    wal = fixture.world.wal
    before = len(wal.records)
    wal.records = [record for record in wal.records if not is_lost(decode_entry(record.payload, 0)[0])]
    assert len(wal.records) < before
    await fixture.crash()


def is_data_from(offset: int) -> Callable[[EntryHeader], bool]:
    return lambda entry: entry.stream_id == DATA and entry.base_offset >= offset


async def produce(
    fixture: Fixture, partition: Partition, start: int, end: int, producer_id: int = PRODUCER
) -> None:
    """One record each at the log's end, with its number as sequence and in its time."""
    expected = partition.log_end_offset
    for number in range(start, end):
        data = batch(1, timestamp=START_MS + number, producer_id=producer_id, sequence=number)
        appended = await fixture.produce(partition, data)
        assert appended.base_offset == expected
        expected += 1


async def check_log(fixture: Fixture, partition: Partition, end: int) -> None:
    """Every offset is there, in segments without a gap, and found by its time."""
    assert (partition.log_start_offset, partition.high_watermark) == (0, end)
    assert len(await read(partition)) == end
    segments = list(partition.state.segments)
    assert segments[0].base_offset == 0
    assert segments[-1].end_offset == end
    for number in range(end):
        found = await Lookups(fixture.unpacking).find_time(partition, START_MS + number, end)
        assert found == (number, START_MS + number)


def test_a_checkpoint_above_the_end() -> None:
    """Records are lost that a checkpoint had counted: those before them are served, new ones take their
    offsets, and a crash before the next checkpoint does not make the old one look right."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(settings=SETTINGS)
        await produce(fixture, partition, 0, 10)
        await partition.save()
        await crash_losing(fixture, is_data_from(6))
        partition = await fixture.open(settings=SETTINGS, leader_epoch=1)
        await check_log(fixture, partition, 6)
        assert partition.state.epochs.entries == ((0, 0), (1, 6))
        await produce(fixture, partition, 6, 12)
        await fixture.crash()
        partition = await fixture.open(settings=SETTINGS, leader_epoch=1)
        await check_log(fixture, partition, 12)
        await partition.save()
        await fixture.crash()
        partition = await fixture.open(settings=SETTINGS, leader_epoch=1)
        await check_log(fixture, partition, 12)

    run(scenario())


def test_without_a_new_epoch_it_is_damage() -> None:
    """Nobody gave anything up: the partition does not open as if nothing were."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        await produce(fixture, partition, 0, 10)
        await partition.save()
        await crash_losing(fixture, is_data_from(6))
        with pytest.raises(StateCorrupt, match="above the log's end 6"):
            await fixture.open()

    run(scenario())


def test_a_log_start_above_the_end() -> None:
    """What was deleted stays deleted; the log goes on at its end."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(settings=SETTINGS)
        await produce(fixture, partition, 0, 10)
        partition.raise_log_start(9, START_MS)
        await fixture.settle()
        await crash_losing(fixture, is_data_from(6))
        partition = await fixture.open(settings=SETTINGS, leader_epoch=1)
        assert (partition.log_start_offset, partition.high_watermark) == (6, 6)
        await fixture.produce(partition, batch(5))
        await fixture.crash()
        partition = await fixture.open(settings=SETTINGS, leader_epoch=1)
        assert (partition.log_start_offset, partition.high_watermark) == (6, 11)
        assert len(await read(partition)) == 1

    run(scenario())


def test_producers_above_the_end() -> None:
    """A retry of a lost batch is written, one of a batch that is there is not; a producer whose batches are
    all lost goes on where it is."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(settings=SETTINGS)
        await produce(fixture, partition, 0, 8)
        for number in range(20, 26):
            await fixture.produce(
                partition, batch(1, producer_id=OTHER, sequence=0 if number == 20 else number - 20)
            )
        await partition.save()
        await crash_losing(fixture, is_data_from(6))
        partition = await fixture.open(settings=SETTINGS, leader_epoch=1)
        repeated = await fixture.produce(
            partition, batch(1, timestamp=START_MS + 5, producer_id=PRODUCER, sequence=5)
        )
        assert repeated.base_offset == 5
        with pytest.raises(KafkaError):
            await fixture.produce(partition, batch(1, producer_id=PRODUCER, sequence=8))
        await produce(fixture, partition, 6, 8)
        goes_on = await fixture.produce(partition, batch(1, producer_id=OTHER, sequence=6))
        assert goes_on.base_offset == 8
        assert len(await read(partition)) == 9

    run(scenario())


@pytest.mark.parametrize("end", [3, 5, 17, 25, 29])
def test_segments_above_the_end(end: int) -> None:
    """Segments that are whole below the end stay as they are; the one that the end falls into is filled
    anew."""

    async def scenario() -> None:
        settings = TopicSettings(index_interval_bytes=100, rules=ProduceRules(segment_bytes=400))
        fixture = await Fixture().start()
        partition = await fixture.open(settings=settings)
        await produce(fixture, partition, 0, 20)
        await partition.save()
        await produce(fixture, partition, 20, 30)
        await partition.save()
        bases = [segment.base_offset for segment in partition.state.segments]
        assert len(bases) > 5
        await crash_losing(fixture, is_data_from(end))
        partition = await fixture.open(settings=settings, leader_epoch=1)
        await check_log(fixture, partition, end)
        whole = [base for base in bases if base < end][:-1]
        assert [segment.base_offset for segment in partition.state.segments][: len(whole)] == whole
        await produce(fixture, partition, end, 40)
        await partition.save()
        await fixture.crash()
        partition = await fixture.open(settings=settings, leader_epoch=1)
        await check_log(fixture, partition, 40)

    run(scenario())


@pytest.mark.parametrize("is_data_lost", [False, True])
def test_index_entries_above_the_end(is_data_lost: bool) -> None:
    """The time stream lost its last chunk, and perhaps the log its end: what is written in its place is not
    read as the old segment's."""

    async def scenario() -> None:
        settings = TopicSettings(index_interval_bytes=100, rules=ProduceRules(segment_bytes=1000))
        fixture = await Fixture().start()
        partition = await fixture.open(settings=settings)
        await produce(fixture, partition, 0, 10)
        await partition.save()
        first_chunk_end = partition.time.next_offset
        await produce(fixture, partition, 10, 20)
        await partition.save()
        assert partition.time.next_offset > first_chunk_end
        end = 15 if is_data_lost else 20
        is_lost = is_data_from(end)
        await crash_losing(
            fixture,
            lambda entry: (
                is_lost(entry) or (entry.stream_id == TIME and entry.base_offset >= first_chunk_end)
            ),
        )
        partition = await fixture.open(settings=settings, leader_epoch=1)
        await check_log(fixture, partition, end)
        await produce(fixture, partition, end, 40)
        await partition.save()
        await check_log(fixture, partition, 40)
        await fixture.crash()
        partition = await fixture.open(settings=settings, leader_epoch=1)
        await check_log(fixture, partition, 40)

    run(scenario())
