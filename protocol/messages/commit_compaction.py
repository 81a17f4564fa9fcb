"""CommitCompaction (private, key 508): new objects take the place of others, at once. No stream's end moves.

Sent again it changes nothing: it is known by the objects that it made, and, where it made none, by its
sources, which are committed no more.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int8, Int16, Int32, Int64, Uuid, Versions, array


@dataclass(slots=True)
class CompactedRange:
    stream_id: Int64 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = 0


@dataclass(slots=True)
class CompactedObject:
    object_id: Int64 = 0
    kind: Int8 = 1
    size_bytes: Int64 = 0
    stream_id: Int64 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = 0


@dataclass(slots=True)
class CommitCompactionRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = 0
    broker_epoch: Int64 = -1
    object_id: Int64 = -1  # of the new stream-set object; -1: there is none
    size_bytes: Int64 = 0
    ranges: list[CompactedRange] = array()  # of the stream-set object, by stream and start
    stream_objects: list[CompactedObject] = array()  # of one stream each
    compacted_ids: list[Int64] = array()  # replaced: marked for deletion
    superseded_ids: list[Int64] = array()  # composites whose links live on: marked for deletion without them
    linked_ids: list[Int64] = array()  # leave metadata, their files stay: a new composite links them
    dropped_link_ids: list[Int64] = (
        array()
    )  # were linked by a superseded composite, and by none any more: marked for deletion
    trimmed_ids: list[Int64] = (
        array()
    )  # streams in stream-set sources that exist, and of which all there was trimmed
    incarnation: Uuid = NO_UUID  # as in CommitUpload


@dataclass(slots=True)
class CommitCompactionResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED, INVALID_REQUEST; INVALID_RECORD_STATE: metadata has moved
    # on since it was planned: a source is not committed, an object not prepared, or something wanted would be
    # in no object any more
    error_code: Int16 = 0
    error_message: str | None = None
