"""DescribeTopicPartitions (key 75): partitions of topics, in pages (KIP-966). What Metadata tells, and
eligible leaders besides."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_OPERATIONS, NO_UUID, Int16, Int32, Uuid, Versions, array


@dataclass(slots=True)
class TopicRequest:
    name: str = ""


@dataclass(slots=True)
class Cursor:
    topic_name: str = ""
    partition_index: Int32 = 0


@dataclass(slots=True)
class DescribeTopicPartitionsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    topics: list[TopicRequest] = array()
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None  # where to go on; null: at the beginning


@dataclass(slots=True)
class DescribeTopicPartitionsResponsePartition:
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0  # -1: no leader
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32] = array()
    isr_nodes: list[Int32] = array()
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32] = array()


@dataclass(slots=True)
class DescribeTopicPartitionsResponseTopic:
    error_code: Int16 = 0
    name: str | None = ""
    topic_id: Uuid = NO_UUID
    is_internal: bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = array()
    topic_authorized_operations: Int32 = NO_OPERATIONS


@dataclass(slots=True)
class DescribeTopicPartitionsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = array()
    next_cursor: Cursor | None = None  # null: that was all
