"""AlterConfigs (key 33): replaces the whole configuration of resources. IncrementalAlterConfigs took its
place."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Versions, array


@dataclass(slots=True)
class AlterableConfig:
    name: str = ""
    value: str | None = ""  # null: back to the default


@dataclass(slots=True)
class AlterConfigsResource:
    resource_type: Int8 = 0  # as in DescribeConfigs
    resource_name: str = ""
    configs: list[AlterableConfig] = array()


@dataclass(slots=True)
class AlterConfigsRequest:
    VERSIONS = Versions(0, 2, flexible=2)

    resources: list[AlterConfigsResource] = array()
    validate_only: bool = False


@dataclass(slots=True)
class AlterConfigsResourceResponse:
    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""


@dataclass(slots=True)
class AlterConfigsResponse:
    VERSIONS = Versions(0, 2, flexible=2)

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = array()
