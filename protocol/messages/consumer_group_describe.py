"""ConsumerGroupDescribe (key 69): state and members of consumer groups (KIP-848).

One answer for each group asked for: confluent-kafka aborts its process when one is missing.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import (
    NO_OPERATIONS,
    NO_UUID,
    Int8,
    Int16,
    Int32,
    Uuid,
    Versions,
    array,
    struct,
    wire,
)


@dataclass(slots=True)
class ConsumerGroupDescribeRequest:
    VERSIONS = Versions(0, 1, flexible=0)

    group_ids: list[str] = array()
    include_authorized_operations: bool = False


@dataclass(slots=True)
class TopicPartitions:
    topic_id: Uuid = NO_UUID
    topic_name: str = ""
    partitions: list[Int32] = array()


@dataclass(slots=True)
class Assignment:
    topic_partitions: list[TopicPartitions] = array()


@dataclass(slots=True)
class Member:
    member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: Int32 = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = array()
    subscribed_topic_regex: str | None = None
    assignment: Assignment = struct(Assignment)
    target_assignment: Assignment = struct(Assignment)
    member_type: Int8 = wire(-1, since=1, ignorable=True)  # -1 unknown, 0 classic, 1 consumer


@dataclass(slots=True)
class DescribedGroup:
    error_code: Int16 = 0  # GROUP_ID_NOT_FOUND also for classic groups
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: str = ""
    members: list[Member] = array()
    authorized_operations: Int32 = NO_OPERATIONS


@dataclass(slots=True)
class ConsumerGroupDescribeResponse:
    VERSIONS = Versions(0, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = array()
