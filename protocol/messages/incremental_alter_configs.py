"""IncrementalAlterConfigs (key 44): changes single entries of the configuration of resources."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Versions, array


@dataclass(slots=True)
class AlterableConfig:
    name: str = ""
    config_operation: Int8 = 0  # 0 set, 1 delete, 2 append, 3 subtract; the latter two of lists
    value: str | None = ""


@dataclass(slots=True)
class AlterConfigsResource:
    resource_type: Int8 = 0  # as in DescribeConfigs
    resource_name: str = ""
    configs: list[AlterableConfig] = array()


@dataclass(slots=True)
class IncrementalAlterConfigsRequest:
    VERSIONS = Versions(0, 1, flexible=1)

    resources: list[AlterConfigsResource] = array()
    validate_only: bool = False


@dataclass(slots=True)
class AlterConfigsResourceResponse:
    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""


@dataclass(slots=True)
class IncrementalAlterConfigsResponse:
    VERSIONS = Versions(0, 1, flexible=1)

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = array()
