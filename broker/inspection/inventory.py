"""What metadata says is stored, in the shape that people and checks ask for it: the one place that knows how
the tables keep it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.objects import ObjectState
from millrace.kraft.tables.ranges import OWED
from millrace.kraft.tables.stream_set_groups import Purpose
from millrace.kraft.tables.streams import StreamState
from millrace.protocol.dataclass import dataclass
from millrace.protocol.ids import uuid_text
from millrace.s3stream.ids import ObjectId, ObjectKind, StreamId


@dataclass(frozen=True, slots=True)
class KnownObject:
    """`stream_id`, `start`, `end`: of an object of one stream; -1 of a stream-set object, whose own index
    knows. `size_bytes` of a composite is that of the data it links. `time_ms`: prepared: until when;
    committed: when its oldest data was; pending deletion: since when."""

    object_id: ObjectId
    state: ObjectState
    kind: ObjectKind
    size_bytes: int
    time_ms: int
    node_id: int
    stream_id: int
    start: int
    end: int
    writer: int = 0  # token of the incarnation that its footer names; 0: none, at millrace.version 0

    @property
    def is_committed(self) -> bool:
        return self.state is ObjectState.COMMITTED


@dataclass(frozen=True, slots=True)
class Held:
    """[start, end) of a stream is in these committed objects: in the one, or in some of several, whose
    indexes know. `is_ordered`: an earlier one has lower offsets than a later one, as uploads have. Without an
    object it is in the write-ahead log of node `owed_by` alone, which has still to upload it; or, with -1
    there, it was given up with such a log."""

    start: int
    end: int
    object_ids: tuple[ObjectId, ...]
    is_ordered: bool
    owed_by: int = -1

    @property
    def place(self) -> str:
        """Where it is, in words."""
        if self.object_ids:
            return ", ".join(map(str, self.object_ids))
        return f"owed by node {self.owed_by}" if self.owed_by >= 0 else "given up"


@dataclass(frozen=True, slots=True)
class KnownStream:
    """`topic` is the topic's name, or its id where the topic is gone."""

    stream_id: StreamId
    topic: str
    partition: int
    role: str
    epoch: int
    node_id: int
    is_open: bool
    start: int
    end: int
    held: tuple[Held, ...]


def known_objects(image: MetadataImage) -> Iterator[KnownObject]:
    """By id, those that are prepared and pending deletion too."""
    for object_id, stored in image.objects.by_id.items():
        is_of_one = stored.stream_id >= 0
        yield KnownObject(
            object_id,
            stored.state,
            stored.kind,
            stored.size_bytes,
            stored.time_ms,
            stored.node_id,
            stored.stream_id,
            stored.start if is_of_one else -1,
            stored.end if is_of_one else -1,
            stored.writer,
        )


def known_object(image: MetadataImage, object_id: int) -> KnownObject | None:
    if image.objects.get(object_id) is None:
        return None
    return next((known for known in known_objects(image) if known.object_id == object_id), None)


def known_streams(image: MetadataImage) -> Iterator[KnownStream]:
    """By id."""
    names = {bytes(topic.topic_id): topic.name for topic in image.topics}
    for stream in image.streams.by_id.values():
        yield KnownStream(
            stream.stream_id,
            names.get(stream.topic_id) or uuid_text(stream.topic_id),
            stream.partition,
            stream.role.name.lower(),
            stream.epoch,
            stream.node_id,
            stream.is_open,
            stream.start,
            stream.end,
            tuple(_held(image, stream)),
        )


@dataclass(frozen=True, slots=True)
class StreamName:
    """Whose a stream is, as people say it."""

    topic: str
    partition: int
    role: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} {self.role}"


def stream_names(image: MetadataImage, stream_ids: Iterable[int]) -> dict[int, StreamName]:
    """Those of them that metadata knows."""
    topics = {bytes(topic.topic_id): topic.name for topic in image.topics}
    found = {}
    for stream_id in dict.fromkeys(stream_ids):
        stream = image.streams.get(stream_id)
        if stream is not None:
            topic = topics.get(stream.topic_id) or uuid_text(stream.topic_id)
            found[stream_id] = StreamName(topic, stream.partition, stream.role.name.lower())
    return found


def _held(image: MetadataImage, stream: StreamState) -> Iterator[Held]:
    ranges = image.objects.ranges.get(stream.stream_id)
    if ranges is None:
        return
    for start, end, holder in ranges.all(stream.end):
        if holder == OWED:
            for owed in image.streams.owed.of_stream(stream.stream_id):
                if start <= owed.start < end:
                    yield Held(owed.start, owed.end, (), True, owed.node_id)
            continue
        object_ids = tuple(image.objects.held_by(holder))
        yield Held(start, end, object_ids, all(_is_upload(image, object_id) for object_id in object_ids))


def _is_upload(image: MetadataImage, object_id: ObjectId) -> bool:
    group = image.objects.groups.get(image.objects.by_id[object_id].group_id)
    return group is not None and group.purpose == Purpose.UPLOADS


def next_object_id(image: MetadataImage) -> int:
    """No object of this metadata has this id or a higher one."""
    return image.objects.next_id
