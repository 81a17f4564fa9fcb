"""DescribeQuorum (key 55): state of the metadata quorum: leader, voters, observers, and how far each has
come."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, UInt16, Uuid, Versions, array, wire


@dataclass(slots=True)
class DescribeQuorumRequestPartitionData:
    partition_index: Int32 = 0


@dataclass(slots=True)
class DescribeQuorumRequestTopicData:
    topic_name: str = ""
    partitions: list[DescribeQuorumRequestPartitionData] = array()


@dataclass(slots=True)
class DescribeQuorumRequest:
    VERSIONS = Versions(0, 2, flexible=0)

    topics: list[DescribeQuorumRequestTopicData] = array()


@dataclass(slots=True)
class ReplicaState:
    replica_id: Int32 = 0
    replica_directory_id: Uuid = wire(NO_UUID, since=2, ignorable=True)
    log_end_offset: Int64 = 0  # -1: unknown
    # by the leader's clock; -1: unknown, and for the leader itself
    last_fetch_timestamp: Int64 = wire(-1, since=1, ignorable=True)
    last_caught_up_timestamp: Int64 = wire(-1, since=1, ignorable=True)


@dataclass(slots=True)
class DescribeQuorumResponsePartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = wire("", since=2, ignorable=True)
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: list[ReplicaState] = array()
    observers: list[ReplicaState] = array()


@dataclass(slots=True)
class DescribeQuorumResponseTopicData:
    topic_name: str = ""
    partitions: list[DescribeQuorumResponsePartitionData] = array()


@dataclass(slots=True)
class Listener:
    name: str = ""
    host: str = ""
    port: UInt16 = 0


@dataclass(slots=True)
class Node:
    node_id: Int32 = 0
    listeners: list[Listener] = array()


@dataclass(slots=True)
class DescribeQuorumResponse:
    VERSIONS = Versions(0, 2, flexible=0)

    error_code: Int16 = 0
    error_message: str | None = wire("", since=2, ignorable=True)
    topics: list[DescribeQuorumResponseTopicData] = array()
    nodes: list[Node] = array(since=2, ignorable=True)
