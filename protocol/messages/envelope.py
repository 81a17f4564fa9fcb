"""Envelope (key 58): a client's request, passed from a broker to the controller with the principal that sent
it (KIP-590)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Versions


@dataclass(slots=True)
class EnvelopeRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    request_data: bytes = b""  # header and body
    request_principal: bytes | None = b""
    client_host_address: bytes = b""  # 4 or 16 bytes


@dataclass(slots=True)
class EnvelopeResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    response_data: bytes | None = None  # header and body; null with an error
    error_code: Int16 = 0
