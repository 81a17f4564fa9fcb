"""What must be true of every image, checked whole."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from millrace.kraft.image import MetadataImage
from millrace.kraft.tables.configs import ResourceType
from millrace.kraft.tables.objects import RANGE, ObjectState
from millrace.kraft.tables.topics import collision_key


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
    """No overlap, no gap from the stream's start to its committed end."""
    for stream_id, ranges in image.objects.ranges.items():
        stream = image.streams.by_id[stream_id]
        found = list(ranges)
        assert found[0][0] <= stream.start < found[0][1], (stream, ranges)
        assert found[-1][1] == stream.end, (stream, ranges)
        for before, after in pairwise(found):
            assert before[1] == after[0], (stream, ranges)
    for stream in image.streams.by_id.values():
        assert (stream.start < stream.end) == (stream.stream_id in image.objects.ranges), stream


def check_objects(image: MetadataImage) -> None:
    objects = image.objects
    alive = Counter(object_id for ranges in objects.ranges.values() for _, _, object_id in ranges)
    size_bytes = 0
    for object_id, stored in objects.by_id.items():
        assert object_id < objects.next_id
        assert ((stored.time_ms, object_id) in objects.deadlines) == (stored.state is ObjectState.PREPARED)
        assert ((stored.time_ms, object_id) in objects.dooms) == (stored.state is ObjectState.DOOMED)
        assert alive.pop(object_id, 0) == stored.alive, (object_id, stored)
        if stored.state is ObjectState.COMMITTED:
            assert stored.alive > 0, (object_id, stored)
            assert len(stored.ranges) // RANGE.size >= stored.alive
            size_bytes += stored.size_bytes
    assert not alive
    assert objects.committed_bytes == size_bytes
    assert objects.committed_count == sum(s.state is ObjectState.COMMITTED for s in objects.by_id.values())
