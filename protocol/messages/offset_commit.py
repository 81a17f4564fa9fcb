"""OffsetCommit (key 8): a group's positions, kept by its coordinator.

Not here: who may commit (broker/coordinators/). Topics have names up to version 9, ids from 10 on.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions, array, wire


@dataclass(slots=True)
class OffsetCommitRequestPartition:
    partition_index: Int32 = 0
    committed_offset: Int64 = 0  # the next one to read
    committed_leader_epoch: Int32 = wire(-1, since=6, ignorable=True)  # of the last record read
    committed_metadata: str | None = ""  # the client's own; bounded by offset.metadata.max.bytes


@dataclass(slots=True)
class OffsetCommitRequestTopic:
    name: str = wire("", until=9, ignorable=True)
    topic_id: Uuid = wire(NO_UUID, since=10, ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = array()


@dataclass(slots=True)
class OffsetCommitRequest:
    VERSIONS = Versions(2, 10, flexible=8)

    group_id: str = ""
    # classic groups: generation; consumer groups: epoch; -1: no membership claimed
    generation_id_or_member_epoch: Int32 = -1
    member_id: str = ""
    group_instance_id: str | None = wire(None, since=7)  # of static members
    retention_time_ms: Int64 = wire(-1, until=4, ignorable=True)  # -1: as the broker is set
    topics: list[OffsetCommitRequestTopic] = array()


@dataclass(slots=True)
class OffsetCommitResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0  # ILLEGAL_GENERATION, STALE_MEMBER_EPOCH, REBALANCE_IN_PROGRESS, ...


@dataclass(slots=True)
class OffsetCommitResponseTopic:
    name: str = wire("", until=9, ignorable=True)
    topic_id: Uuid = wire(NO_UUID, since=10, ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = array()


@dataclass(slots=True)
class OffsetCommitResponse:
    VERSIONS = Versions(2, 10, flexible=8)

    throttle_time_ms: Int32 = wire(0, since=3, ignorable=True)
    topics: list[OffsetCommitResponseTopic] = array()
