"""AlterShareGroupOffsets (key 91): sets start offsets of a share group that has no members."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions, array


@dataclass(slots=True)
class AlterShareGroupOffsetsRequestPartition:
    partition_index: Int32 = 0
    start_offset: Int64 = 0


@dataclass(slots=True)
class AlterShareGroupOffsetsRequestTopic:
    topic_name: str = ""
    partitions: list[AlterShareGroupOffsetsRequestPartition] = array()


@dataclass(slots=True)
class AlterShareGroupOffsetsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    group_id: str = ""
    topics: list[AlterShareGroupOffsetsRequestTopic] = array()


@dataclass(slots=True)
class AlterShareGroupOffsetsResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@dataclass(slots=True)
class AlterShareGroupOffsetsResponseTopic:
    topic_name: str = ""
    topic_id: Uuid = NO_UUID
    partitions: list[AlterShareGroupOffsetsResponsePartition] = array()


@dataclass(slots=True)
class AlterShareGroupOffsetsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    responses: list[AlterShareGroupOffsetsResponseTopic] = array()
