"""ShareGroupHeartbeat (key 76): a member of a share group says what changed, the coordinator what it reads
from (KIP-932).

A null in the request means unchanged since the last one.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Uuid, Versions, array


@dataclass(slots=True)
class ShareGroupHeartbeatRequest:
    VERSIONS = Versions(1, 1, flexible=0)

    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0  # 0 joins, -1 leaves
    rack_id: str | None = None
    subscribed_topic_names: list[str] | None = None


@dataclass(slots=True)
class TopicPartitions:
    topic_id: Uuid = NO_UUID
    partitions: list[Int32] = array()


@dataclass(slots=True)
class Assignment:
    topic_partitions: list[TopicPartitions] = array()


@dataclass(slots=True)
class ShareGroupHeartbeatResponse:
    VERSIONS = Versions(1, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None  # null: unchanged
