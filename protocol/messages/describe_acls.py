"""DescribeAcls (key 29): lists ACLs that match a filter.

Resource types, operations, permissions and pattern types are the numbers of Kafka's ACL model
(broker/auth/acls.py).
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Versions, array


@dataclass(slots=True)
class DescribeAclsRequest:
    VERSIONS = Versions(1, 3, flexible=2)

    resource_type_filter: Int8 = 0
    resource_name_filter: str | None = ""  # null: any
    pattern_type_filter: Int8 = 3  # 1 any, 2 matching, 3 literal, 4 prefixed
    principal_filter: str | None = ""  # null: any
    host_filter: str | None = ""  # null: any
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(slots=True)
class AclDescription:
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(slots=True)
class DescribeAclsResource:
    resource_type: Int8 = 0
    resource_name: str = ""
    pattern_type: Int8 = 3
    acls: list[AclDescription] = array()


@dataclass(slots=True)
class DescribeAclsResponse:
    VERSIONS = Versions(1, 3, flexible=2)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    resources: list[DescribeAclsResource] = array()
