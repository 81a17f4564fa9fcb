"""DescribeDelegationToken (key 41): lists delegation tokens."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array, wire


@dataclass(slots=True)
class DescribeDelegationTokenOwner:
    principal_type: str = ""
    principal_name: str = ""


@dataclass(slots=True)
class DescribeDelegationTokenRequest:
    VERSIONS = Versions(1, 3, flexible=2)

    owners: list[DescribeDelegationTokenOwner] | None = array()  # null: all that the client may see


@dataclass(slots=True)
class DescribedDelegationTokenRenewer:
    principal_type: str = ""
    principal_name: str = ""


@dataclass(slots=True)
class DescribedDelegationToken:
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = wire("", since=3)
    token_requester_principal_name: str = wire("", since=3)
    issue_timestamp: Int64 = 0
    expiry_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    token_id: str = ""
    hmac: bytes = b""
    renewers: list[DescribedDelegationTokenRenewer] = array()


@dataclass(slots=True)
class DescribeDelegationTokenResponse:
    VERSIONS = Versions(1, 3, flexible=2)

    error_code: Int16 = 0
    tokens: list[DescribedDelegationToken] = array()
    throttle_time_ms: Int32 = 0
