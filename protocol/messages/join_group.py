"""JoinGroup (key 11): entering, or entering again, a classic group; answered when the rebalance ends.

Not here: the group's states (broker/coordinators/groups/group.py). Metadata is the embedded protocol's and
opaque to us.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Versions, array, wire


@dataclass(slots=True)
class JoinGroupRequestProtocol:
    name: str = ""
    metadata: bytes = b""


@dataclass(slots=True)
class JoinGroupRequest:
    VERSIONS = Versions(0, 9, flexible=6)

    group_id: str = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Int32 = wire(-1, since=1, ignorable=True)  # -1: the session's timeout
    member_id: str = ""  # empty the first time
    group_instance_id: str | None = wire(None, since=5)
    protocol_type: str = ""  # consumer, connect, sr, ...
    protocols: list[JoinGroupRequestProtocol] = array()  # by preference
    reason: str | None = wire(None, since=8, ignorable=True)


@dataclass(slots=True)
class JoinGroupResponseMember:
    member_id: str = ""
    group_instance_id: str | None = wire(None, since=5, ignorable=True)
    metadata: bytes = b""


@dataclass(slots=True)
class JoinGroupResponse:
    VERSIONS = Versions(0, 9, flexible=6)

    throttle_time_ms: Int32 = wire(0, since=2, ignorable=True)
    error_code: Int16 = 0  # MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID, INCONSISTENT_GROUP_PROTOCOL, ...
    generation_id: Int32 = -1  # -1: with an error
    protocol_type: str | None = wire(None, since=7, ignorable=True)
    protocol_name: str | None = wire("", nullable_since=7)  # null with an error
    leader: str = ""
    skip_assignment: bool = wire(False, since=9)  # a static leader came back: the old assignment stands
    member_id: str = ""
    members: list[JoinGroupResponseMember] = array()  # for the leader only
