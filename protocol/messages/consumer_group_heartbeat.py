"""ConsumerGroupHeartbeat (key 68): the one request of the consumer group protocol (KIP-848): member says what
changed, coordinator what to own.

A null in the request means unchanged since the last one. From version 1 on members make their own ids
(KIP-1082).
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Uuid, Versions, array, wire


@dataclass(slots=True)
class TopicPartitions:
    topic_id: Uuid = NO_UUID
    partitions: list[Int32] = array()


@dataclass(slots=True)
class ConsumerGroupHeartbeatRequest:
    VERSIONS = Versions(0, 1, flexible=0)

    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0  # 0 joins, -1 leaves, -2 a static member leaves for a while
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1  # -1: unchanged
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: str | None = wire(None, since=1)
    server_assignor: str | None = None
    topic_partitions: list[TopicPartitions] | None = None  # what the member owns now


@dataclass(slots=True)
class Assignment:
    topic_partitions: list[TopicPartitions] = array()


@dataclass(slots=True)
class ConsumerGroupHeartbeatResponse:
    VERSIONS = Versions(0, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0  # UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, UNSUPPORTED_ASSIGNOR, ...
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None  # null: unchanged
