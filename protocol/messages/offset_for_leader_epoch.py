"""OffsetForLeaderEpoch (key 23): where a leader epoch ended, so that a log that grew under an older one can
be cut."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array, wire


@dataclass(slots=True)
class OffsetForLeaderPartition:
    partition: Int32 = 0
    current_leader_epoch: Int32 = -1  # fences those with old metadata; -1: not checked
    leader_epoch: Int32 = 0


@dataclass(slots=True)
class OffsetForLeaderTopic:
    topic: str = ""
    partitions: list[OffsetForLeaderPartition] = array()


@dataclass(slots=True)
class OffsetForLeaderEpochRequest:
    VERSIONS = Versions(2, 4, flexible=4)

    replica_id: Int32 = wire(-2, since=3, ignorable=True)  # -1 a consumer, -2 someone looking on
    topics: list[OffsetForLeaderTopic] = array()


@dataclass(slots=True)
class EpochEndOffset:
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1  # the greatest one that is not above the one asked for
    end_offset: Int64 = -1  # exclusive; -1: unknown


@dataclass(slots=True)
class OffsetForLeaderTopicResult:
    topic: str = ""
    partitions: list[EpochEndOffset] = array()


@dataclass(slots=True)
class OffsetForLeaderEpochResponse:
    VERSIONS = Versions(2, 4, flexible=4)

    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = array()
