"""SaslAuthenticate (key 36): one step of the SASL exchange. The bytes are the mechanism's own."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int64, Versions, wire


@dataclass(slots=True)
class SaslAuthenticateRequest:
    VERSIONS = Versions(0, 2, flexible=2)

    auth_bytes: bytes = b""


@dataclass(slots=True)
class SaslAuthenticateResponse:
    VERSIONS = Versions(0, 2, flexible=2)

    error_code: Int16 = 0
    error_message: str | None = ""
    auth_bytes: bytes = b""
    # 0: for ever; else authenticate again before it ends (KIP-368)
    session_lifetime_ms: Int64 = wire(0, since=1, ignorable=True)
