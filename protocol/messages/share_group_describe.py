"""ShareGroupDescribe (key 77): state and members of share groups (KIP-932)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_OPERATIONS, NO_UUID, Int16, Int32, Uuid, Versions, array, struct


@dataclass(slots=True)
class ShareGroupDescribeRequest:
    VERSIONS = Versions(1, 1, flexible=0)

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
    rack_id: str | None = None
    member_epoch: Int32 = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = array()
    assignment: Assignment = struct(Assignment)


@dataclass(slots=True)
class DescribedGroup:
    error_code: Int16 = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: str = ""
    members: list[Member] = array()
    authorized_operations: Int32 = NO_OPERATIONS


@dataclass(slots=True)
class ShareGroupDescribeResponse:
    VERSIONS = Versions(1, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = array()
