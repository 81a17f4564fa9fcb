"""DescribeCluster (key 60): brokers or, from version 1 on, controllers of the cluster."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_OPERATIONS, Int8, Int16, Int32, Versions, array, wire


@dataclass(slots=True)
class DescribeClusterRequest:
    VERSIONS = Versions(0, 2, flexible=0)

    include_cluster_authorized_operations: bool = False
    endpoint_type: Int8 = wire(1, since=1)  # 1 brokers, 2 controllers
    include_fenced_brokers: bool = wire(False, since=2)


@dataclass(slots=True)
class DescribeClusterBroker:
    broker_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None
    is_fenced: bool = wire(False, since=2)


@dataclass(slots=True)
class DescribeClusterResponse:
    VERSIONS = Versions(0, 2, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0  # MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE
    error_message: str | None = None
    endpoint_type: Int8 = wire(1, since=1)
    cluster_id: str = ""
    controller_id: Int32 = -1  # from a broker any live broker, from a controller the leader
    brokers: list[DescribeClusterBroker] = array()
    cluster_authorized_operations: Int32 = NO_OPERATIONS
