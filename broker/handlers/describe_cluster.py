"""DescribeCluster (key 60): the cluster's id and its brokers, for administration clients (KIP-700).

Versions 0 to 2. No field is ignored.
"""

from __future__ import annotations

from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.requests.operations import CLUSTER_OPERATIONS
from millrace.broker.requests.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS, CONTROLLERS = 1, 2
# Kafka's words
CONTROLLERS_TEXT = (
    "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
)


class DescribeCluster:
    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def handle(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        if request.endpoint_type != BROKERS:
            code, text = (
                ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                f"Unsupported endpoint type {request.endpoint_type}",
            )
            if request.endpoint_type == CONTROLLERS:
                code, text = ErrorCode.MISMATCHED_ENDPOINT_TYPE, CONTROLLERS_TEXT
            return DescribeClusterResponse(error_code=code, error_message=text)
        nodes = self._cache.nodes(context.connection)
        response = DescribeClusterResponse(
            cluster_id=self._cache.cluster_id,
            controller_id=self._cache.node_id,
            brokers=[
                DescribeClusterBroker(node.node_id, node.host, node.port, node.rack, node.is_fenced)
                for node in nodes
                if request.include_fenced_brokers or not node.is_fenced
            ],
        )
        if context.api_version < 2:
            for broker in response.brokers:
                broker.is_fenced = False
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response
