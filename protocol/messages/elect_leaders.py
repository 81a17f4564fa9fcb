"""ElectLeaders (key 43): elects leaders, preferred or, where it must be, unclean ones."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Versions, array, wire


@dataclass(slots=True)
class TopicPartitions:
    topic: str = ""
    partitions: list[Int32] = array()


@dataclass(slots=True)
class ElectLeadersRequest:
    VERSIONS = Versions(0, 2, flexible=2)

    election_type: Int8 = wire(0, since=1)  # 0 preferred, 1 unclean
    topic_partitions: list[TopicPartitions] | None = array()  # null: all
    timeout_ms: Int32 = 60000


@dataclass(slots=True)
class PartitionResult:
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


@dataclass(slots=True)
class ReplicaElectionResult:
    topic: str = ""
    partition_result: list[PartitionResult] = array()


@dataclass(slots=True)
class ElectLeadersResponse:
    VERSIONS = Versions(0, 2, flexible=2)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = wire(0, since=1, ignorable=True)  # version 0 says it of each partition
    replica_election_results: list[ReplicaElectionResult] = array()
