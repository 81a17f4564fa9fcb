"""WriteShareGroupState (key 85): the leader of a share partition writes its state to the share coordinator
(KIP-932)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int8, Int16, Int32, Int64, Uuid, Versions, array, wire


@dataclass(slots=True)
class StateBatch:
    first_offset: Int64 = 0
    last_offset: Int64 = 0  # inclusive
    delivery_state: Int8 = 0  # 0 available, 2 acknowledged, 4 archived
    delivery_count: Int16 = 0


@dataclass(slots=True)
class PartitionData:
    partition: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0  # -1: unchanged
    # settled offsets at or above the start; -1: unknown
    delivery_complete_count: Int32 = wire(-1, since=1, ignorable=True)
    state_batches: list[StateBatch] = array()


@dataclass(slots=True)
class WriteStateData:
    topic_id: Uuid = NO_UUID
    partitions: list[PartitionData] = array()


@dataclass(slots=True)
class WriteShareGroupStateRequest:
    VERSIONS = Versions(0, 1, flexible=0)

    group_id: str = ""
    topics: list[WriteStateData] = array()


@dataclass(slots=True)
class PartitionResult:
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@dataclass(slots=True)
class WriteStateResult:
    topic_id: Uuid = NO_UUID
    partitions: list[PartitionResult] = array()


@dataclass(slots=True)
class WriteShareGroupStateResponse:
    VERSIONS = Versions(0, 1, flexible=0)

    results: list[WriteStateResult] = array()
