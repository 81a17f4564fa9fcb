"""UnregisterController (key 94): an admin removes the registration of a controller that will not come back
(KIP-1312)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Versions


@dataclass(slots=True)
class UnregisterControllerRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    controller_id: Int32 = 0


@dataclass(slots=True)
class UnregisterControllerResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
