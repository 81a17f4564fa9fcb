"""RenewDelegationToken (key 39): prolongs a delegation token."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions


@dataclass(slots=True)
class RenewDelegationTokenRequest:
    VERSIONS = Versions(1, 2, flexible=2)

    hmac: bytes = b""
    renew_period_ms: Int64 = 0


@dataclass(slots=True)
class RenewDelegationTokenResponse:
    VERSIONS = Versions(1, 2, flexible=2)

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
