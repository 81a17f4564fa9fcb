"""ListPartitionReassignments (key 46): the changes of replicas that are under way."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Versions, array


@dataclass(slots=True)
class ListPartitionReassignmentsTopics:
    name: str = ""
    partition_indexes: list[Int32] = array()


@dataclass(slots=True)
class ListPartitionReassignmentsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None  # null: all


@dataclass(slots=True)
class OngoingPartitionReassignment:
    partition_index: Int32 = 0
    replicas: list[Int32] = array()
    adding_replicas: list[Int32] = array()
    removing_replicas: list[Int32] = array()


@dataclass(slots=True)
class OngoingTopicReassignment:
    name: str = ""
    partitions: list[OngoingPartitionReassignment] = array()


@dataclass(slots=True)
class ListPartitionReassignmentsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    topics: list[OngoingTopicReassignment] = array()
