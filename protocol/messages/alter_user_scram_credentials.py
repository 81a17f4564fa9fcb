"""AlterUserScramCredentials (key 51): sets and removes SCRAM credentials. Clients salt and hash; the password
itself never travels."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Versions, array


@dataclass(slots=True)
class ScramCredentialDeletion:
    name: str = ""
    mechanism: Int8 = 0  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512


@dataclass(slots=True)
class ScramCredentialUpsertion:
    name: str = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: bytes = b""
    salted_password: bytes = b""


@dataclass(slots=True)
class AlterUserScramCredentialsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    deletions: list[ScramCredentialDeletion] = array()
    upsertions: list[ScramCredentialUpsertion] = array()


@dataclass(slots=True)
class AlterUserScramCredentialsResult:
    user: str = ""
    error_code: Int16 = 0
    error_message: str | None = ""


@dataclass(slots=True)
class AlterUserScramCredentialsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult] = array()
