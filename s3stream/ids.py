"""Values that name streams, objects and what lies in them. Pure; the only file of this package that kraft may import."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NewType

StreamId = NewType("StreamId", int)
ObjectId = NewType("ObjectId", int)

NO_OBJECT = ObjectId(-1)


class StreamRole(IntEnum):
    """What a partition uses a stream for. Stored in metadata: never renumber."""

    META = 0
    DATA = 1
    TIME = 2
    TRANSACTION = 3


class ObjectKind(IntEnum):
    """Stored in metadata: never renumber."""

    STREAM_SET = 0
    STREAM = 1


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """A stream as the controller knows it for its owner. `end` is the end of what is committed as objects; what the WAL holds lies beyond."""

    stream_id: StreamId
    epoch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StreamRange:
    """[start, end) of one stream."""

    stream_id: StreamId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A committed object, as far as a reader of one stream needs it. `start`/`end` are the asked stream's range in it."""

    object_id: ObjectId
    kind: ObjectKind
    size_bytes: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CommittedStreamObject:
    """One stream object of an upload's commit."""

    object_id: ObjectId
    size_bytes: int
    range: StreamRange


@dataclass(frozen=True, slots=True)
class UploadCommit:
    """What one upload puts into metadata, atomically.

    `object_id` is the stream-set object (NO_OBJECT when every stream got its own). Each range starts at its stream's committed end;
    for each stream the commit advances that end. A stream that no longer exists is skipped. Retried with the same ids, it changes nothing.
    """

    object_id: ObjectId
    size_bytes: int
    ranges: tuple[StreamRange, ...]
    stream_objects: tuple[CommittedStreamObject, ...]
