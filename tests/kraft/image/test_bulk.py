"""Records of a start that are alike are folded many at a time, and come to what each of them in its turn
makes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.kraft.errors import UnknownRecord
from millrace.kraft.image.bulk import KNOWN_MAX, RUN_MIN, RecordFolder
from millrace.kraft.image.delta import MetadataDelta, apply_records
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.image.records import (
    ALIKE_MIN,
    Proposal,
    ValueReader,
    ValueWriter,
    decode_values,
    encode_batch,
)
from millrace.kraft.log.snapshot import chunks, image_records
from millrace.kraft.tables.packing import pack_ranges
from millrace.protocol.batch_build import build_batch
from millrace.protocol.errors import WireError
from millrace.protocol.metadata_records import FeatureLevelRecord, PartitionRecord, TopicRecord
from millrace.protocol.records import Record, iter_records
from millrace.protocol.stream_records import CommitObjectRecord, PrepareObjectsRecord, StreamRecord
from tests.calls import calls_below
from tests.kraft.check import check_image

TOPICS = [bytes([number]) * 16 for number in range(3)]
PARTITIONS = 60  # of each
FIELDS = ("features", "brokers", "topics", "configs", "streams", "objects")
CHANGES = ("features_changed", "topics_changed", "topics_removed", "streams_changed", "objects_changed")


def image_of(held_a_stream: int = 3) -> MetadataImage:
    """Partitions with three streams each, of which two have ranges in objects."""
    records: list[Any] = []
    for number, topic_id in enumerate(TOPICS):
        records.append(TopicRecord(f"t{number}", topic_id))
        for index in range(PARTITIONS):
            leader = 1 + index % 3
            directories = [bytes(15) + bytes([leader])]
            records.append(
                PartitionRecord(
                    index, topic_id, [leader], [leader], [], [], leader, 0, index % 5, 0, directories
                )
            )
    streams = [
        (number, index, role) for number in range(3) for index in range(PARTITIONS) for role in range(3)
    ]
    records += [
        StreamRecord(stream_id, TOPICS[number], index, role, 4, 1 + index % 3, index % 2, 0, 0)
        for stream_id, (number, index, role) in enumerate(streams)
    ]
    records.append(PrepareObjectsRecord(0, held_a_stream, 1, 1 << 40))
    for object_id in range(held_a_stream):
        ranges = ((one, object_id * 10, object_id * 10 + 10) for one in range(len(streams)) if one % 3)
        records.append(
            CommitObjectRecord(object_id, 0, 1 << 20, object_id, 1_000, 1, 0, object_id, pack_ranges(ranges))
        )
    return apply_records(EMPTY_IMAGE, records, len(records), 1)[1]


def folded(base: MetadataImage, values: list[bytes], at_once: int) -> tuple[MetadataDelta, MetadataImage]:
    """In batches of so many."""
    folder, delta = RecordFolder(), MetadataDelta(base)
    for start in range(0, len(values), at_once):
        folder.fold(delta, values[start : start + at_once])
    return delta, delta.done(len(values), 1)


def check_same(base: MetadataImage, values: list[bytes], at_once: int = 500) -> MetadataImage:
    reader, expected = ValueReader(), MetadataDelta(base)
    expected.apply_all(map(reader.read, values))
    image = expected.done(len(values), 1)
    delta, found = folded(base, values, at_once)
    for name in FIELDS:
        assert getattr(found, name) == getattr(image, name), name
    for name in CHANGES:
        assert getattr(delta, name) == getattr(expected, name), name
    check_image(found)
    return found


def snapshot_values(image: MetadataImage) -> list[bytes]:
    return [value for part in chunks(image, ValueWriter()) for value in part]


@pytest.mark.parametrize("at_once", [1, RUN_MIN - 1, RUN_MIN, 97, 500])
def test_a_snapshot_comes_to_the_same_image(at_once: int) -> None:
    """Whatever of it stands in one batch."""
    image = image_of()
    assert check_same(EMPTY_IMAGE, snapshot_values(image), at_once).streams == image.streams


def test_what_follows_in_the_log_comes_to_the_same_image() -> None:
    """Streams that are there are closed, opened in a later epoch and moved; partitions change; some are
    new."""
    image, writer = image_of(), ValueWriter()
    streams = list(image.streams.by_id.values())
    records: list[Any] = []
    for epoch, state in ((4, 0), (5, 1), (6, 1)):
        records += [
            StreamRecord(
                one.stream_id, bytes(16), one.partition, one.role, epoch, 2, state, one.start, one.end
            )
            for one in streams
        ]
    records.append(StreamRecord(9_000, TOPICS[0], 7, 3, 1, 1, 1, 0, 0))
    records += [
        PartitionRecord(index, TOPICS[1], [2], [2], [], [], 2, 0, 9, 9, []) for index in range(PARTITIONS)
    ]
    records += [PartitionRecord(PARTITIONS, TOPICS[1], [3], [3], [], [], 3, 0, 0, 0, [])]
    values = writer.write_all(records)
    found = check_same(image, values)
    assert {one.epoch for one in found.streams.of_topic(TOPICS[0])} == {1, 6}


def test_a_snapshot_that_says_a_thing_twice_says_it_once() -> None:
    """In one batch, and in two: the later one holds."""
    values = snapshot_values(image_of())
    doubled = [value for value in values for _ in range(2)]
    doubled = [value for value in doubled if ValueReader().read(value).KEY != TopicRecord.KEY]
    topics = [value for value in values if ValueReader().read(value).KEY == TopicRecord.KEY]
    check_same(EMPTY_IMAGE, topics + doubled)
    check_same(EMPTY_IMAGE, topics + doubled, 90)


def test_equal_states_are_one_object() -> None:
    """Of a hundred thousand partitions the image holds the few states that there are."""
    _, found = folded(EMPTY_IMAGE, snapshot_values(image_of()), 500)
    states = [state for topic in found.topics for state in topic.partitions]
    assert len({id(state) for state in states}) == len(set(states)) == 15
    assert len({id(ranges) for ranges in found.objects.ranges.values()}) == 1


def test_ranges_that_streams_share_go_apart_when_one_goes_on() -> None:
    """Their columns are one only as long as they are equal."""
    _, found = folded(EMPTY_IMAGE, snapshot_values(image_of()), 500)
    ranges = found.objects.ranges
    one, other = next(iter(ranges.values())), list(ranges.values())[1]
    before = list(other.all(30))
    longer = one.append(30, 7 << 4)
    moved = other.append(33, 8 << 4)
    assert list(longer.all(40))[-2:] == [(0, 30, before[0][2]), (30, 40, 7 << 4)]
    assert list(moved.all(40))[-1] == (33, 40, 8 << 4)
    assert list(list(ranges.values())[2].all(30)) == before


def test_more_states_than_are_kept_are_read() -> None:
    """Each partition is in an epoch of its own: nothing is found again, and memory does not grow with
    them."""
    count = 2 * KNOWN_MAX + 10
    records: list[Any] = [TopicRecord("t", TOPICS[0])]
    records += [PartitionRecord(index, TOPICS[0], [1], [1], [], [], 1, 0, index) for index in range(count)]
    folder, delta = RecordFolder(), MetadataDelta(EMPTY_IMAGE)
    folder.fold(delta, ValueWriter().write_all(records))
    assert [state.leader_epoch for state in next(iter(delta.done(1, 1).topics)).partitions] == list(
        range(count)
    )
    assert len(folder._states) <= KNOWN_MAX


def test_what_is_not_as_this_build_writes_it_is_read_or_refused() -> None:
    """A later version of a record is unknown, one that is cut off is no record; and a run of them changes
    nothing of that."""
    value = ValueWriter().write(StreamRecord(1, TOPICS[0], 0, 0, 0, 1, 1, 0, 0))
    later = value[:7] + b"\x01" + value[8:]
    folder = RecordFolder()
    with pytest.raises(UnknownRecord):
        folder.fold(MetadataDelta(EMPTY_IMAGE), [later] * 2 * RUN_MIN)
    for cut in (value[:-1], value[:20], ValueWriter().write(PartitionRecord(0, TOPICS[0]))[:30]):
        with pytest.raises(WireError):
            folder.fold(MetadataDelta(EMPTY_IMAGE), [cut] * 2 * RUN_MIN)


def test_a_snapshot_is_folded_with_few_calls_a_record() -> None:
    """Reading the batch included: seventeen calls and returns; one by one it takes seventy."""
    values = snapshot_values(image_of())
    batches = [
        encode_batch([Proposal(values[start : start + 500], 0)], 0, 1) for start in range(0, len(values), 500)
    ]
    folder, delta = RecordFolder(), MetadataDelta(EMPTY_IMAGE)
    with calls_below(25 * len(values)):
        for batch in batches:
            folder.fold(delta, decode_values(memoryview(batch)))
    assert list(image_records(delta.done(1, 1))) == list(image_records(image_of()))


LENGTHS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 5, 63, 64, 65, 200]), st.integers(1, 3 * ALIKE_MIN), st.integers(0, 300)
    ),
    max_size=8,
)


@given(LENGTHS)
def test_values_are_cut_out_as_their_records_say(runs: list[tuple[int, int, int]]) -> None:
    """Of runs of equal length, with numbers that grow over a byte's bounds, and times that change, as they do
    in what others wrote."""
    records = [
        Record(None, bytes([index % 256]) * length, 1_000 + time_ms)
        for length, count, time_ms in runs
        for index in range(count)
    ] or [Record(None, b"one", 0)]
    batch = memoryview(build_batch(records, base_offset=5, leader_epoch=1))
    expected = [bytes(record.value or b"") for record in iter_records(batch)]
    assert decode_values(batch) == expected


def test_a_run_that_is_cut_off_is_refused() -> None:
    """Wherever the bytes end, and whatever the header claims to be there."""
    batch = encode_batch([Proposal([b"value"] * 200, 0)], 0, 1)
    for size_bytes in (len(batch) - 1, len(batch) - 9, len(batch) // 2, 80):
        cut = bytearray(batch[:size_bytes])
        cut[8:12] = (size_bytes - 12).to_bytes(4, "big")
        with pytest.raises(WireError, match="do not fill it"):
            decode_values(memoryview(cut))
    more = bytearray(batch)
    more[57:61] = (201).to_bytes(4, "big")
    with pytest.raises(WireError, match="do not fill it"):
        decode_values(memoryview(more))


def test_a_feature_between_runs_keeps_its_place() -> None:
    """Records of other kinds are applied where they stand."""
    writer = ValueWriter()
    made = [TopicRecord("t", TOPICS[0]), *(PartitionRecord(number, TOPICS[0]) for number in range(40))]
    streams = [StreamRecord(number, TOPICS[0], number, 0, 0, 1, 1, 0, 0) for number in range(40)]
    feature = FeatureLevelRecord("metadata.version", 7)
    values = writer.write_all([*made, *streams[:20], feature, *streams[20:]])
    assert check_same(EMPTY_IMAGE, values).features.level("metadata.version") == 7
