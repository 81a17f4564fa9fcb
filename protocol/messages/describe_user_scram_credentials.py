"""DescribeUserScramCredentials (key 50): which users have SCRAM credentials. The credentials themselves are
never told."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Versions, array


@dataclass(slots=True)
class UserName:
    name: str = ""


@dataclass(slots=True)
class DescribeUserScramCredentialsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    users: list[UserName] | None = array()  # null or empty: all


@dataclass(slots=True)
class CredentialInfo:
    mechanism: Int8 = 0  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512
    iterations: Int32 = 0


@dataclass(slots=True)
class DescribeUserScramCredentialsResult:
    user: str = ""
    error_code: Int16 = 0
    error_message: str | None = ""
    credential_infos: list[CredentialInfo] = array()


@dataclass(slots=True)
class DescribeUserScramCredentialsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    results: list[DescribeUserScramCredentialsResult] = array()
