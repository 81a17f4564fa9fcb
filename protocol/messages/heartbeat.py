"""Heartbeat (key 12): a member of a classic group says that it lives."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Versions, wire


@dataclass(slots=True)
class HeartbeatRequest:
    VERSIONS = Versions(0, 4, flexible=4)

    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: str | None = wire(None, since=3)


@dataclass(slots=True)
class HeartbeatResponse:
    VERSIONS = Versions(0, 4, flexible=4)

    throttle_time_ms: Int32 = wire(0, since=1, ignorable=True)
    error_code: Int16 = 0  # REBALANCE_IN_PROGRESS: join again
