"""CreateAcls (key 30): adds ACLs."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Versions, array


@dataclass(slots=True)
class AclCreation:
    resource_type: Int8 = 0
    resource_name: str = ""
    resource_pattern_type: Int8 = 3  # 3 literal, 4 prefixed
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(slots=True)
class CreateAclsRequest:
    VERSIONS = Versions(1, 3, flexible=2)

    creations: list[AclCreation] = array()


@dataclass(slots=True)
class AclCreationResult:
    error_code: Int16 = 0
    error_message: str | None = ""


@dataclass(slots=True)
class CreateAclsResponse:
    VERSIONS = Versions(1, 3, flexible=2)

    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = array()
