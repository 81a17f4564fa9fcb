"""DescribeConfigs (key 32): configuration of topics, brokers, groups and client metrics, with its sources."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Versions, array, wire


@dataclass(slots=True)
class DescribeConfigsResource:
    resource_type: Int8 = 0  # 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group
    resource_name: str = ""
    configuration_keys: list[str] | None = array()  # null: all


@dataclass(slots=True)
class DescribeConfigsRequest:
    VERSIONS = Versions(1, 4, flexible=4)

    resources: list[DescribeConfigsResource] = array()
    include_synonyms: bool = False
    include_documentation: bool = wire(False, since=3)


@dataclass(slots=True)
class DescribeConfigsSynonym:
    name: str = ""
    value: str | None = ""
    source: Int8 = 0


@dataclass(slots=True)
class DescribeConfigsResourceResult:
    name: str = ""
    value: str | None = ""  # null when sensitive or unset
    read_only: bool = False
    config_source: Int8 = (
        -1
    )  # 1 topic, 2 broker, 3 all brokers, 4 file, 5 default, 6 logger, 7 metrics, 8 group
    is_sensitive: bool = False
    synonyms: list[DescribeConfigsSynonym] = array()  # where the value comes from, first the one that won
    # 1 bool, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password
    config_type: Int8 = wire(0, since=3, ignorable=True)
    documentation: str | None = wire("", since=3, ignorable=True)


@dataclass(slots=True)
class DescribeConfigsResult:
    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResourceResult] = array()


@dataclass(slots=True)
class DescribeConfigsResponse:
    VERSIONS = Versions(1, 4, flexible=4)

    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = array()
