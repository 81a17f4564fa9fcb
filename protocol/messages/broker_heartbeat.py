"""BrokerHeartbeat (key 63): a broker lives, how far it has followed the metadata log, and whether it wants to
serve or to go."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Uuid, Versions, array, wire


@dataclass(slots=True)
class BrokerHeartbeatRequest:
    VERSIONS = Versions(0, 2, flexible=0)

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    current_metadata_offset: Int64 = 0
    want_fence: bool = False  # not ready to lead
    want_shut_down: bool = False  # move my partitions, then let me go
    offline_log_dirs: list[Uuid] = array(since=1, tag=0)
    cordoned_log_dirs: list[Uuid] | None = wire(None, since=2, tag=1)  # null before recovery


@dataclass(slots=True)
class BrokerHeartbeatResponse:
    VERSIONS = Versions(0, 2, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0  # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED, NOT_CONTROLLER
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False  # nothing is led there any more
