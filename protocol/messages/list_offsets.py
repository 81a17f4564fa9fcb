"""ListOffsets (key 2): which offset belongs to a time, and where a log begins and ends.

Not here: how a time is looked up (broker/partitions/time_index.py).
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Int64, Versions, array, wire


@dataclass(slots=True)
class ListOffsetsPartition:
    partition_index: Int32 = 0
    current_leader_epoch: Int32 = wire(-1, since=4, ignorable=True)
    # ms; -1 latest, -2 earliest, -3 of greatest time, -4 earliest local, -5 last tiered, -6 first not tiered
    timestamp: Int64 = 0


@dataclass(slots=True)
class ListOffsetsTopic:
    name: str = ""
    partitions: list[ListOffsetsPartition] = array()


@dataclass(slots=True)
class ListOffsetsRequest:
    VERSIONS = Versions(1, 11, flexible=6)

    replica_id: Int32 = 0  # -1: a consumer
    isolation_level: Int8 = wire(0, since=2)  # with 1, the end is the last stable offset
    topics: list[ListOffsetsTopic] = array()
    timeout_ms: Int32 = wire(0, since=10, ignorable=True)  # for lookups in tiered storage


@dataclass(slots=True)
class ListOffsetsPartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1  # of the record found; -1 for the special offsets
    offset: Int64 = -1  # -1: no record is that young
    leader_epoch: Int32 = wire(-1, since=4, ignorable=True)


@dataclass(slots=True)
class ListOffsetsTopicResponse:
    name: str = ""
    partitions: list[ListOffsetsPartitionResponse] = array()


@dataclass(slots=True)
class ListOffsetsResponse:
    VERSIONS = Versions(1, 11, flexible=6)

    throttle_time_ms: Int32 = wire(0, since=2, ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array()
