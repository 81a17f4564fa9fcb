"""CommitUpload (private, key 506): what one upload put into the store becomes readable, and its streams' ends
move.

Atomic. Each range begins where its stream's committed part ends; a stream that is gone, or a range that is
already committed, is passed over. Sent again with the same ids it changes nothing.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions, array


@dataclass(slots=True)
class UploadedRange:
    stream_id: Int64 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = 0


@dataclass(slots=True)
class UploadedStreamObject:
    object_id: Int64 = 0
    size_bytes: Int64 = 0
    stream_id: Int64 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = 0


@dataclass(slots=True)
class CommitUploadRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = 0
    broker_epoch: Int64 = -1
    object_id: Int64 = -1  # of the stream-set object; -1: every stream got an object of its own
    size_bytes: Int64 = 0
    ranges: list[UploadedRange] = array()  # of the stream-set object, by stream and start
    stream_objects: list[UploadedStreamObject] = array()
    incarnation: Uuid = NO_UUID  # who wrote them: the registered one; zeros at millrace.version 0
    wal_id: Uuid = NO_UUID  # of the write-ahead log that the data came from; zeros: one without an identity
    wal_end: Int64 = 0  # everything that ends at or below it there is committed then


@dataclass(slots=True)
class CommitUploadResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED, INVALID_REQUEST; RESOURCE_NOT_FOUND: an object that is not
    # prepared, or no longer; OFFSET_OUT_OF_RANGE: a range that would leave a gap; FENCED_LEADER_EPOCH: a
    # stream of another node
    error_code: Int16 = 0
    error_message: str | None = None
