"""AlterPartitionReassignments (key 45): gives partitions other replicas, or takes such a change back."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Versions, array, wire


@dataclass(slots=True)
class ReassignablePartition:
    partition_index: Int32 = 0
    replicas: list[Int32] | None = None  # null: cancel what is under way


@dataclass(slots=True)
class ReassignableTopic:
    name: str = ""
    partitions: list[ReassignablePartition] = array()


@dataclass(slots=True)
class AlterPartitionReassignmentsRequest:
    VERSIONS = Versions(0, 1, flexible=0)

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: bool = wire(True, since=1)
    topics: list[ReassignableTopic] = array()


@dataclass(slots=True)
class ReassignablePartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


@dataclass(slots=True)
class ReassignableTopicResponse:
    name: str = ""
    partitions: list[ReassignablePartitionResponse] = array()


@dataclass(slots=True)
class AlterPartitionReassignmentsResponse:
    VERSIONS = Versions(0, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: bool = wire(True, since=1, ignorable=True)
    error_code: Int16 = 0
    error_message: str | None = ""
    responses: list[ReassignableTopicResponse] = array()
