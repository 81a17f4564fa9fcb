"""LeaveGroup (key 13): members leave a classic group; from version 3 on several, by id or by instance id."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Versions, array, wire


@dataclass(slots=True)
class MemberIdentity:
    member_id: str = ""  # empty when an admin removes a static member
    group_instance_id: str | None = None
    reason: str | None = wire(None, since=5, ignorable=True)


@dataclass(slots=True)
class LeaveGroupRequest:
    VERSIONS = Versions(0, 5, flexible=4)

    group_id: str = ""
    member_id: str = wire("", until=2)
    members: list[MemberIdentity] = array(since=3)


@dataclass(slots=True)
class MemberResponse:
    member_id: str = ""
    group_instance_id: str | None = ""
    error_code: Int16 = 0


@dataclass(slots=True)
class LeaveGroupResponse:
    VERSIONS = Versions(0, 5, flexible=4)

    throttle_time_ms: Int32 = wire(0, since=1, ignorable=True)
    error_code: Int16 = 0
    members: list[MemberResponse] = array(since=3)
