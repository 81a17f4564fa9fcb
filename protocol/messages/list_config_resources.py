"""ListConfigResources (key 74): names of resources that have configuration. In version 0: client metrics
alone, under another name."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Versions, array, wire


@dataclass(slots=True)
class ListConfigResourcesRequest:
    VERSIONS = Versions(0, 1, flexible=0)

    resource_types: list[Int8] = array(since=1)  # as in DescribeConfigs; empty: all that are supported


@dataclass(slots=True)
class ConfigResource:
    resource_name: str = ""
    resource_type: Int8 = wire(16, since=1, ignorable=True)


@dataclass(slots=True)
class ListConfigResourcesResponse:
    VERSIONS = Versions(0, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = array()
