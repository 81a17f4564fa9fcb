"""What must be true of every image, checked whole."""

from __future__ import annotations

from collections import Counter

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.configs import ResourceType
from millrace.kraft.tables.objects import ObjectState
from millrace.kraft.tables.owed_ranges import OWED_RANGES_MAX
from millrace.kraft.tables.ranges import LOST, OWED, SLOT_BITS, SLOTS
from millrace.kraft.tables.stream_set_groups import GONE
from millrace.kraft.tables.topics import collision_key
from millrace.s3stream.ids import ObjectId, ObjectKind


def holding(image: MetadataImage, stream_id: int, offset: int) -> list[int]:
    """Ids of the objects that may hold an offset."""
    stream = image.streams.get(stream_id)
    return [] if stream is None else [hint.object_id for hint in image.objects.candidates(stream, offset, 1)]


def check_image(image: MetadataImage) -> None:
    check_topics(image)
    check_streams(image)
    check_ranges(image)
    check_objects(image)


def check_topics(image: MetadataImage) -> None:
    topics = list(image.topics)
    assert [t.name for t in topics] == sorted(t.name for t in topics)
    assert sorted(t.topic_id for t in topics) == list(image.topics.ids)
    assert image.topics.partition_count == sum(len(t.partitions) for t in topics)
    keys = {key: t.name for t in topics if (key := collision_key(t.name)) is not None}
    assert dict(image.topics.collisions.items()) == keys
    for (kind, name), values in image.configs.by_resource.items():
        assert values, name
        assert kind != ResourceType.TOPIC or image.topics.by_name(name) is not None, name


def check_streams(image: MetadataImage) -> None:
    streams = image.streams
    expected: dict[tuple[bytes, int], list[tuple[int, int]]] = {}
    for stream_id, stream in streams.by_id.items():
        assert stream.stream_id == stream_id < streams.next_id
        assert 0 <= stream.start <= stream.end
        assert image.topics.partition(stream.topic_id, stream.partition) is not None, stream
        expected.setdefault((stream.topic_id, stream.partition), []).append((stream.role, stream_id))
        assert ((stream.node_id, stream_id) in streams.open_on_node) == stream.is_open
    assert {key: sorted(found) for key, found in streams.partitions.items()} == {
        key: sorted(found) for key, found in expected.items()
    }
    assert len(streams.open_on_node) == sum(stream.is_open for stream in streams.by_id.values())


def check_ranges(image: MetadataImage) -> None:
    """From each stream's start to its committed end, and every range has somebody who holds it."""
    objects = image.objects
    for stream_id, ranges in objects.ranges.items():
        stream = image.streams.by_id[stream_id]
        found = list(ranges.all(stream.end))
        assert found[0][0] <= stream.start < found[0][1], (stream, ranges)
        for start, end, holder in found:
            assert start < end, (stream, ranges)
            if holder in (OWED, LOST):
                continue
            holders = objects.held_by(holder)
            assert holders, (stream, ranges)
            assert all(objects.by_id[one].state is ObjectState.COMMITTED for one in holders), (stream, ranges)
            kinds = {objects.by_id[one].kind is ObjectKind.STREAM_SET for one in holders}
            assert kinds == {bool(holder & SLOTS)}, (stream, ranges)
    for stream in image.streams.by_id.values():
        assert (stream.start < stream.end) == (stream.stream_id in objects.ranges), stream
    check_owed(image)


def check_owed(image: MetadataImage) -> None:
    """What is owed is what no object holds: by one node each, in order, and named by its node."""
    owed = image.streams.owed
    by_node = {(one.node_id, one.stream_id): None for one in owed}
    assert list(owed.by_node) == sorted(by_node)
    assert len(by_node) == sum(1 for _ in owed)
    for stream_id, ranges in image.objects.ranges.items():
        stream, found = image.streams.by_id[stream_id], owed.of_stream(stream_id)
        assert len(found) <= OWED_RANGES_MAX
        low = stream.start  # what lies below it is nobody's, whatever is said of it
        held = [(max(start, low), end) for start, end, holder in ranges.all(stream.end) if holder == OWED]
        joined: list[tuple[int, int]] = []
        for one in found:
            assert stream.start < one.end <= stream.end
            assert one.start < one.end
            if joined and joined[-1][1] == one.start:
                joined[-1] = joined[-1][0], one.end
            else:
                joined.append((max(one.start, low), one.end))
        assert held == joined, (stream, ranges, found)
    assert all(stream_id in image.objects.ranges for stream_id in owed.by_stream)


def check_objects(image: MetadataImage) -> None:
    objects = image.objects
    held = [holder for ranges in objects.ranges.values() for holder in ranges.holders()]
    alive = Counter(object_id for holder in held for object_id in objects.held_by(holder))
    size_bytes = 0
    sets = []
    for object_id, stored in objects.by_id.items():
        assert object_id < objects.next_id
        assert ((stored.time_ms, object_id) in objects.deadlines) == (stored.state is ObjectState.PREPARED)
        assert ((stored.time_ms, object_id) in objects.pending_deletions) == (
            stored.state is ObjectState.PENDING_DELETION
        )
        assert alive.pop(object_id, 0) == stored.alive, (object_id, stored)
        if stored.state is ObjectState.COMMITTED:
            assert stored.alive > 0, (object_id, stored)
            size_bytes += stored.size_bytes
            if stored.kind is ObjectKind.STREAM_SET:
                sets.append((stored.node_id, stored.order_id, object_id))
                assert objects.groups[stored.group_id].members[stored.slot] == object_id, (object_id, stored)
    assert not alive
    assert sorted(sets) == list(objects.sets)
    assert objects.committed_bytes == size_bytes
    assert objects.committed_count == sum(s.state is ObjectState.COMMITTED for s in objects.by_id.values())
    check_groups(image, held)


def check_groups(image: MetadataImage, held: list[int]) -> None:
    objects = image.objects
    named = Counter(holder >> SLOT_BITS for holder in held if holder & SLOTS)
    for group_id, group in objects.groups.items():
        members = [object_id for object_id in group.members if object_id != GONE]
        assert members, (group_id, group)
        assert all(objects.by_id[ObjectId(one)].group_id == group_id for one in members), (group_id, group)
        assert named.pop(group_id, 0) == group.range_count, (group_id, group)
    assert not named
    for (node_id, purpose), group_id in objects.open_groups.items():
        group = objects.groups[group_id]
        assert (group.node_id, group.purpose, group.is_full) == (node_id, purpose, False)
