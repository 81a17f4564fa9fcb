"""Ten thousand partitions, thirty thousand streams, a hundred thousand ranges: what a commit, a look-up and a
restart cost.

Bounds are several times what was measured, in scans of all thirty thousand streams by the same processor at
the same time: they tell a change of order, and neither a slow nor a busy machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from millrace.kraft.image.delta import apply_records
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.image.records import Proposal, ValueReader, ValueWriter, decode_values, encode_batch
from millrace.kraft.log.snapshot import chunks, image_records
from millrace.kraft.tables.packing import pack_ranges
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.metadata_records import PartitionRecord, TopicRecord
from millrace.protocol.stream_records import (
    CommitObjectRecord,
    PrepareObjectsRecord,
    StreamRecord,
    TrimStreamRecord,
)
from millrace.s3stream.ids import StreamId
from tests.calls import calls_below
from tests.kraft.build import Broker, create_topic, open_node, run, sim_disk

PARTITIONS, OBJECTS, STREAMS_AN_OBJECT = 10_000, 100, 1_000
TOPIC_ID = bytes(range(16))


@contextmanager
def scans_below(bound: float, image: MetadataImage) -> Iterator[None]:
    before, start = scan_us(image), time.process_time()
    yield
    spent = (time.process_time() - start) * 1e6 / max(before, scan_us(image))
    assert spent < bound, f"{spent:,.0f} times a scan of every stream"


def big_records() -> list[Any]:
    """One topic with three streams a partition; each object holds a range of a thousand streams."""
    records: list[Any] = [TopicRecord("big", TOPIC_ID)]
    records += [
        PartitionRecord(index, TOPIC_ID, [1], [1], [], [], 1, 0, 0, 0, [bytes(16)])
        for index in range(PARTITIONS)
    ]
    for index in range(PARTITIONS):
        records += [StreamRecord(index * 3 + role, TOPIC_ID, index, role, 0, 1, 1, 0, 0) for role in range(3)]
    records.append(PrepareObjectsRecord(0, OBJECTS, 1, 1 << 40))
    for number in range(OBJECTS):
        start = number // 10 * 10
        first = number % 10 * STREAMS_AN_OBJECT
        ranges = pack_ranges((s * 3 + 1, start, start + 10) for s in range(first, first + STREAMS_AN_OBJECT))
        records.append(CommitObjectRecord(number, 0, 1 << 20, number, 1_000, 1, number, 0, ranges))
    return records


@pytest.fixture(scope="module")
def big() -> MetadataImage:
    records = big_records()
    return apply_records(EMPTY_IMAGE, records, len(records), 1)[1]


def mean_us(work: Callable[[int], object], count: int) -> float:
    start = time.process_time()
    for number in range(count):
        work(number)
    return (time.process_time() - start) / count * 1e6


def scan_us(image: MetadataImage) -> float:
    """What one scan of every stream costs now: about a millisecond."""
    return mean_us(lambda number: list(image.streams.by_id), 20)


def test_sizes(big: MetadataImage) -> None:
    """The image is as big as it is said to be."""
    assert big.topics.partition_count == PARTITIONS
    assert len(big.streams) == 3 * PARTITIONS
    assert sum(len(ranges) for ranges in big.objects.ranges.values()) == OBJECTS * STREAMS_AN_OBJECT


def test_a_lookup_is_a_bisection(big: MetadataImage) -> None:
    """A hundredth of a scan, whatever the size."""
    streams = big.streams.by_id
    found = big.objects.candidates(streams[StreamId(3 * 1234 + 1)], 25, 100)
    assert [(hint.start, hint.end) for hint in found] == [(start, start + 10) for start in range(20, 100, 10)]
    with scans_below(200, big):
        for number in range(2_000):
            big.objects.candidates(streams[StreamId(3 * number + 1)], 25, 1)


def test_what_a_node_has_open_is_found_without_looking_at_the_rest(big: MetadataImage) -> None:
    """Three streams of thirty thousand: so many are looked up, and no other node's."""
    image = apply_records(
        big, [StreamRecord(n, TOPIC_ID, 0, n, 0, 2, 1, 0, 0) for n in range(3)], big.offset + 1, 1
    )[1]
    with calls_below(1_000):
        found = list(image.streams.open_on(2))
    assert [stream.stream_id for stream in found] == [0, 1, 2]
    assert sum(1 for _ in image.streams.open_on(1)) == 3 * PARTITIONS - 3


def test_a_commit_touches_few_streams(big: MetadataImage) -> None:
    """One small change of a big image copies a few chunks, not the tables: a thousand cost less than half as
    many scans."""
    with scans_below(500, big):
        for number in range(500):
            apply_records(big, [TrimStreamRecord(3 * number + 1, 10, 0)], big.offset + 1, 1)
            record = StreamRecord(3 * number, TOPIC_ID, number, 0, 1, 1, 1, 0, 0)
            apply_records(big, [record], big.offset + 1, 1)


def test_replay_of_a_hundred_thousand_records(big: MetadataImage) -> None:
    """What a restart does with a log of that length: batches to values to records to an image."""
    writer = ValueWriter()
    records = [
        *big_records()[: 1 + 4 * PARTITIONS],
        *(TrimStreamRecord(n % 30_000, n, 0) for n in range(60_000)),
    ]
    values = writer.write_all(records)
    batches = [encode_batch([Proposal(values[i : i + 50], 0)], i, 1) for i in range(0, len(values), 50)]
    with scans_below(6_000, big):
        reader = ValueReader()
        read = (reader.read(value) for batch in batches for value in decode_values(memoryview(batch)))
        _, image = apply_records(EMPTY_IMAGE, read, len(records), 1)
    assert image.topics.partition_count == PARTITIONS
    assert image.streams.by_id[StreamId(29_999)].start == 59_999


def test_a_snapshot_is_written_in_short_slices(big: MetadataImage) -> None:
    """No chunk holds the loop for long, and all of them together make the image again."""
    count = 0
    written = chunks(big, ValueWriter())
    while True:
        with scans_below(100, big):
            values = next(written, None)
        if values is None:
            break
        assert len(values) <= 500
        count += len(values)
    assert count == sum(1 for _ in image_records(big))
    _, again = apply_records(EMPTY_IMAGE, image_records(big), big.offset, big.epoch)
    assert again.objects == big.objects
    assert again == big


def test_a_snapshot_is_read_with_few_calls_a_record(big: MetadataImage) -> None:
    """A start waits for it: no record of it finds its place in a table one after the other, or is counted
    alone."""
    written = [encode_batch([Proposal(values, 0)], 0, 1) for values in chunks(big, ValueWriter())]
    count, reader = sum(1 for _ in image_records(big)), ValueReader()
    with calls_below(130 * count):
        read = (reader.read(value) for batch in written for value in decode_values(memoryview(batch)))
        _, again = apply_records(EMPTY_IMAGE, read, big.offset, big.epoch)
    assert again == big


def test_a_topic_of_ten_thousand_partitions(big: MetadataImage) -> None:
    """Created, opened here and there, and deleted, by a node."""

    async def main() -> None:
        node = await open_node(sim_disk(latency_s=0.0))
        broker = await Broker.register(node)
        with scans_below(5_000, big):
            response = await create_topic(node, "big", PARTITIONS)
        assert response.topics[0].error_code == 0
        topic_id = response.topics[0].topic_id
        with scans_below(5_000, big):
            await asyncio.gather(
                *(broker.open(topic_id, index, (0, 1, 2)) for index in range(0, PARTITIONS, 10))
            )
        assert len(node.publisher.image.streams) == 3_000
        with scans_below(5_000, big):
            deleted = await node.channel.send(DeleteTopicsRequest([DeleteTopicState("big")]))
        assert deleted.responses[0].error_code == 0
        assert len(node.publisher.image.streams) == 0
        await node.close()

    run(main())
