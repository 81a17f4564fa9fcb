"""DescribeShareGroupOffsets (key 90): start offsets and lag of share groups."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions, array, wire


@dataclass(slots=True)
class DescribeShareGroupOffsetsRequestTopic:
    topic_name: str = ""
    partitions: list[Int32] = array()


@dataclass(slots=True)
class DescribeShareGroupOffsetsRequestGroup:
    group_id: str = ""
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = array()  # null: all


@dataclass(slots=True)
class DescribeShareGroupOffsetsRequest:
    VERSIONS = Versions(0, 1, flexible=0)

    groups: list[DescribeShareGroupOffsetsRequestGroup] = array()


@dataclass(slots=True)
class DescribeShareGroupOffsetsResponsePartition:
    partition_index: Int32 = 0
    start_offset: Int64 = 0
    leader_epoch: Int32 = 0
    lag: Int64 = wire(-1, since=1, ignorable=True)  # -1: unknown
    error_code: Int16 = 0
    error_message: str | None = None


@dataclass(slots=True)
class DescribeShareGroupOffsetsResponseTopic:
    topic_name: str = ""
    topic_id: Uuid = NO_UUID
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = array()


@dataclass(slots=True)
class DescribeShareGroupOffsetsResponseGroup:
    group_id: str = ""
    topics: list[DescribeShareGroupOffsetsResponseTopic] = array()
    error_code: Int16 = 0
    error_message: str | None = None


@dataclass(slots=True)
class DescribeShareGroupOffsetsResponse:
    VERSIONS = Versions(0, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    groups: list[DescribeShareGroupOffsetsResponseGroup] = array()
