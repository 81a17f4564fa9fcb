"""DescribeGroups (key 15): state and members of classic groups."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_OPERATIONS, Int16, Int32, Versions, array, wire


@dataclass(slots=True)
class DescribeGroupsRequest:
    VERSIONS = Versions(0, 6, flexible=5)

    groups: list[str] = array()
    include_authorized_operations: bool = wire(False, since=3)


@dataclass(slots=True)
class DescribedGroupMember:
    member_id: str = ""
    group_instance_id: str | None = wire(None, since=4, ignorable=True)
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


@dataclass(slots=True)
class DescribedGroup:
    error_code: Int16 = 0  # GROUP_ID_NOT_FOUND from version 6 on; before, an unknown group is Dead
    error_message: str | None = wire(None, since=6)
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""  # the assignor that was chosen
    members: list[DescribedGroupMember] = array()
    authorized_operations: Int32 = wire(NO_OPERATIONS, since=3)


@dataclass(slots=True)
class DescribeGroupsResponse:
    VERSIONS = Versions(0, 6, flexible=5)

    throttle_time_ms: Int32 = wire(0, since=1, ignorable=True)
    groups: list[DescribedGroup] = array()
