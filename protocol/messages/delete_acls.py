"""DeleteAcls (key 31): deletes the ACLs that match each filter, and says which they were."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Versions, array


@dataclass(slots=True)
class DeleteAclsFilter:
    resource_type_filter: Int8 = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: Int8 = 3  # 1 any, 2 matching, 3 literal, 4 prefixed
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(slots=True)
class DeleteAclsRequest:
    VERSIONS = Versions(1, 3, flexible=2)

    filters: list[DeleteAclsFilter] = array()


@dataclass(slots=True)
class DeleteAclsMatchingAcl:
    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""
    pattern_type: Int8 = 3
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(slots=True)
class DeleteAclsFilterResult:
    error_code: Int16 = 0
    error_message: str | None = ""
    matching_acls: list[DeleteAclsMatchingAcl] = array()


@dataclass(slots=True)
class DeleteAclsResponse:
    VERSIONS = Versions(1, 3, flexible=2)

    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult] = array()
