"""CreatePartitions (key 37): raises the number of partitions of topics."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Versions, array


@dataclass(slots=True)
class CreatePartitionsAssignment:
    broker_ids: list[Int32] = array()


@dataclass(slots=True)
class CreatePartitionsTopic:
    name: str = ""
    count: Int32 = 0  # afterwards, not added
    assignments: list[CreatePartitionsAssignment] | None = (
        array()
    )  # of the new ones; null: the controller's choice


@dataclass(slots=True)
class CreatePartitionsRequest:
    VERSIONS = Versions(0, 3, flexible=2)

    topics: list[CreatePartitionsTopic] = array()
    timeout_ms: Int32 = 0
    validate_only: bool = False


@dataclass(slots=True)
class CreatePartitionsTopicResult:
    name: str = ""
    error_code: Int16 = 0
    error_message: str | None = None


@dataclass(slots=True)
class CreatePartitionsResponse:
    VERSIONS = Versions(0, 3, flexible=2)

    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = array()
