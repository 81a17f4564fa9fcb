"""InitializeShareGroupState (key 83): the share group's coordinator sets up the state of share partitions, at
the share coordinator (KIP-932)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions, array


@dataclass(slots=True)
class PartitionData:
    partition: Int32 = 0
    state_epoch: Int32 = 0
    start_offset: Int64 = 0  # -1: not set yet


@dataclass(slots=True)
class InitializeStateData:
    topic_id: Uuid = NO_UUID
    partitions: list[PartitionData] = array()


@dataclass(slots=True)
class InitializeShareGroupStateRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    group_id: str = ""
    topics: list[InitializeStateData] = array()


@dataclass(slots=True)
class PartitionResult:
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@dataclass(slots=True)
class InitializeStateResult:
    topic_id: Uuid = NO_UUID
    partitions: list[PartitionResult] = array()


@dataclass(slots=True)
class InitializeShareGroupStateResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    results: list[InitializeStateResult] = array()
