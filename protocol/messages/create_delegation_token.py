"""CreateDelegationToken (key 38): makes a delegation token."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array, wire


@dataclass(slots=True)
class CreatableRenewers:
    principal_type: str = ""
    principal_name: str = ""


@dataclass(slots=True)
class CreateDelegationTokenRequest:
    VERSIONS = Versions(1, 3, flexible=2)

    owner_principal_type: str | None = wire("", since=3)  # null: whoever asks
    owner_principal_name: str | None = wire("", since=3)
    renewers: list[CreatableRenewers] = array()
    max_lifetime_ms: Int64 = 0  # -1: as the broker is set


@dataclass(slots=True)
class CreateDelegationTokenResponse:
    VERSIONS = Versions(1, 3, flexible=2)

    error_code: Int16 = 0
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = wire("", since=3)
    token_requester_principal_name: str = wire("", since=3)
    issue_timestamp_ms: Int64 = 0
    expiry_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    token_id: str = ""
    hmac: bytes = b""
    throttle_time_ms: Int32 = 0
