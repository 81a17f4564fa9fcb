"""SaslHandshake (key 17): chooses the SASL mechanism; version 1 is followed by SaslAuthenticate, version 0 by
bare tokens.

It never became flexible.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Versions, array


@dataclass(slots=True)
class SaslHandshakeRequest:
    VERSIONS = Versions(0, 1)

    mechanism: str = ""


@dataclass(slots=True)
class SaslHandshakeResponse:
    VERSIONS = Versions(0, 1)

    error_code: Int16 = 0  # UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE
    mechanisms: list[str] = array()  # those enabled on this listener
