"""ReadShareGroupState (key 84): the leader of a share partition reads its state from the share coordinator
(KIP-932)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int8, Int16, Int32, Int64, Uuid, Versions, array


@dataclass(slots=True)
class PartitionData:
    partition: Int32 = 0
    leader_epoch: Int32 = 0


@dataclass(slots=True)
class ReadStateData:
    topic_id: Uuid = NO_UUID
    partitions: list[PartitionData] = array()


@dataclass(slots=True)
class ReadShareGroupStateRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    group_id: str = ""
    topics: list[ReadStateData] = array()


@dataclass(slots=True)
class StateBatch:
    first_offset: Int64 = 0
    last_offset: Int64 = 0  # inclusive
    delivery_state: Int8 = 0  # 0 available, 2 acknowledged, 4 archived
    delivery_count: Int16 = 0


@dataclass(slots=True)
class PartitionResult:
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    state_epoch: Int32 = 0
    start_offset: Int64 = 0  # -1: not set yet
    state_batches: list[StateBatch] = array()


@dataclass(slots=True)
class ReadStateResult:
    topic_id: Uuid = NO_UUID
    partitions: list[PartitionResult] = array()


@dataclass(slots=True)
class ReadShareGroupStateResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    results: list[ReadStateResult] = array()
