"""Values that name streams, objects and what lies in them. Pure; the only file of this package that kraft may
import."""

from __future__ import annotations

from enum import IntEnum
from typing import NewType

from millrace.protocol.dataclass import dataclass

StreamId = NewType("StreamId", int)
ObjectId = NewType("ObjectId", int)

NO_OBJECT = ObjectId(-1)
OWED_RANGE = ObjectId(-2)  # in the place of an object's: an earlier owner's write-ahead log alone has it
LOST_RANGE = ObjectId(-3)  # likewise: nothing has it, for that log was given up
NO_WAL = bytes(16)  # a log without an identity


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
    COMPOSITE = 2  # of one stream; links other objects and holds no data of its own


@dataclass(frozen=True, slots=True)
class Writer:
    """The incarnation of a node that writes an object. `token`: the first 8 bytes of the incarnation's id,
    signed; not 0."""

    node_id: int
    token: int

    def __str__(self) -> str:
        return f"incarnation {token_text(self.token)} of node {self.node_id}"


def token_of(incarnation: bytes) -> int:
    return int.from_bytes(incarnation[:8], "big", signed=True)


def token_text(token: int) -> str:
    return f"{token & (1 << 64) - 1:016x}"


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """A stream as the controller knows it for its owner. `end` is the end of what is committed as objects, or
    owed by earlier owners; what the WAL holds lies beyond. Of a start alone, with a `sealed_end`: the WAL
    owes [end, sealed_end) of the stream, which is not open here, but where it is told beside that."""

    stream_id: StreamId
    epoch: int
    start: int
    end: int
    sealed_end: int | None = None


@dataclass(frozen=True, slots=True)
class StreamRange:
    """[start, end) of one stream."""

    stream_id: StreamId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ObjectHint:
    """A committed object that may hold offsets of a stream in [start, end).

    Of an object of that stream alone the bounds are its own. A stream-set object may hold some of them, all,
    or none: its index knows; those with the same bounds have all of them together. OWED_RANGE and LOST_RANGE
    are in the place of an object where there is none; then nothing else holds [start, end).
    """

    object_id: ObjectId
    kind: ObjectKind
    size_bytes: int
    start: int
    end: int
    writer: int = 0  # token of the incarnation that wrote it; 0: not known, and not checked


@dataclass(frozen=True, slots=True)
class CommittedStreamObject:
    """One stream object of an upload's commit."""

    object_id: ObjectId
    size_bytes: int
    range: StreamRange


@dataclass(frozen=True, slots=True)
class UploadCommit:
    """What one upload puts into metadata, atomically.

    `object_id` is the stream-set object (NO_OBJECT when every stream got its own). Each range starts at its
    stream's committed end; for each stream the commit advances that end. A stream that no longer exists is
    skipped. Retried with the same ids, it changes nothing. `wal_end`: everything that ends at or below it in
    the log `wal_id` is committed then.
    """

    object_id: ObjectId
    size_bytes: int
    ranges: tuple[StreamRange, ...]
    stream_objects: tuple[CommittedStreamObject, ...]
    wal_id: bytes = NO_WAL
    wal_end: int = 0


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """[start, end) of what a stream has committed and not trimmed."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StreamSetInfo:
    """A committed stream-set object. `order_id`: newer data has a higher one; `data_time_ms`:
    when its oldest data was committed."""

    object_id: ObjectId
    size_bytes: int
    order_id: int
    data_time_ms: int
    writer: int = 0  # as ObjectHint's


@dataclass(frozen=True, slots=True)
class StreamObjectInfo:
    """A committed object of one stream: its own, or a composite. `size_bytes` of a composite is that of the
    data it links."""

    object_id: ObjectId
    kind: ObjectKind
    size_bytes: int
    start: int
    end: int
    writer: int = 0  # as ObjectHint's


@dataclass(frozen=True, slots=True)
class CompactedStreamObject:
    """A stream object or a composite that compaction made."""

    object_id: ObjectId
    kind: ObjectKind
    size_bytes: int
    range: StreamRange


@dataclass(frozen=True, slots=True)
class CompactionCommit:
    """What one compaction changes in metadata, atomically. It moves no stream's end; retried with the same
    ids, it changes nothing.

    `object_id` is a new stream-set object, which takes the least order id and data time of the sources, or
    NO_OBJECT. `compacted_ids` are replaced: their files go after the grace. `superseded_ids` are composites
    whose linked files live on in a composite of this commit: only their own file goes. `linked_ids` leave
    metadata and keep their files, for a composite of this commit links them. `dropped_link_ids` were linked
    by a superseded composite and hold nothing that is wanted: their files go after the grace.

    `trimmed_ids` names the streams that exist and of which the stream-set sources hold nothing but what was
    trimmed. Metadata does not know what a stream-set object holds, only of which streams there is some: so a
    stream that is neither there nor in a new object was forgotten.
    """

    object_id: ObjectId
    size_bytes: int
    ranges: tuple[StreamRange, ...]
    stream_objects: tuple[CompactedStreamObject, ...]
    compacted_ids: tuple[ObjectId, ...]
    superseded_ids: tuple[ObjectId, ...] = ()
    linked_ids: tuple[ObjectId, ...] = ()
    dropped_link_ids: tuple[ObjectId, ...] = ()
    trimmed_ids: tuple[StreamId, ...] = ()
