"""SyncGroup (key 14): the leader of a classic group hands in assignments, every member gets its own."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Versions, array, wire


@dataclass(slots=True)
class SyncGroupRequestAssignment:
    member_id: str = ""
    assignment: bytes = b""


@dataclass(slots=True)
class SyncGroupRequest:
    VERSIONS = Versions(0, 5, flexible=4)

    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: str | None = wire(None, since=3)
    protocol_type: str | None = wire(None, since=5, ignorable=True)
    protocol_name: str | None = wire(None, since=5, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array()  # from the leader; empty from the others


@dataclass(slots=True)
class SyncGroupResponse:
    VERSIONS = Versions(0, 5, flexible=4)

    throttle_time_ms: Int32 = wire(0, since=1, ignorable=True)
    error_code: Int16 = 0  # REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID
    protocol_type: str | None = wire(None, since=5, ignorable=True)
    protocol_name: str | None = wire(None, since=5, ignorable=True)
    assignment: bytes = b""
