"""DeleteShareGroupState (key 86): the share group's coordinator drops the state of share partitions, at the
share coordinator (KIP-932)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Uuid, Versions, array


@dataclass(slots=True)
class PartitionData:
    partition: Int32 = 0


@dataclass(slots=True)
class DeleteStateData:
    topic_id: Uuid = NO_UUID
    partitions: list[PartitionData] = array()


@dataclass(slots=True)
class DeleteShareGroupStateRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    group_id: str = ""
    topics: list[DeleteStateData] = array()


@dataclass(slots=True)
class PartitionResult:
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@dataclass(slots=True)
class DeleteStateResult:
    topic_id: Uuid = NO_UUID
    partitions: list[PartitionResult] = array()


@dataclass(slots=True)
class DeleteShareGroupStateResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    results: list[DeleteStateResult] = array()
