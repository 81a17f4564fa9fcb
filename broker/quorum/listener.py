"""What a controller listener serves, on one screen: members of the quorum, nodes of the cluster, and tools
that are pointed at controllers (`--bootstrap-controller`).

    Vote 52, BeginQuorumEpoch 53, EndQuorumEpoch 54, Fetch 1 of the metadata log, FetchSnapshot 59,
    UpdateRaftVoter 82
    ForwardCommand 524: commands of other nodes
    commands of administration clients, as they are: those that a broker forwards (api_traits.py); whichever
    controller is asked, the one that leads decides
    ApiVersions 18, DescribeCluster 60, DescribeConfigs 32
    what is turned off (turned_off.py), of ACLs and the like: those that Kafka serves here

Not here: what they mean (millrace/kraft), who may ask (nobody is authenticated yet).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from millrace.broker.config import BrokerSettings
from millrace.broker.handlers import ALTER_CONFIGS, FORWARDED, TURNED_OFF, late
from millrace.broker.handlers.api_versions import ApiVersions
from millrace.broker.handlers.forward import Forward
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.network.memory import RequestBudget
from millrace.broker.network.server import Server, new_server
from millrace.broker.requests.dispatch import Late
from millrace.broker.requests.forwarding import Forwarding
from millrace.broker.requests.operations import CLUSTER_OPERATIONS
from millrace.broker.requests.request import CLOSE, Handle, RequestContext, Verdict
from millrace.broker.settings.log_levels import LogLevels
from millrace.kraft.commands.table import COMMAND_KEYS
from millrace.kraft.node import ControllerNode
from millrace.kraft.peers.commands import UNDECIDED
from millrace.kraft.peers.transport import Endpoints, QuorumTransport
from millrace.kraft.topic_configs import ConfigLookup
from millrace.protocol.apis import API
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from millrace.runtime.bundle import Runtime

DRAIN_MS: Final = 1_000
OF_MEMBERS: Final = (1, 52, 53, 54, 59, 82, 524)
TURNED_OFF_HERE: Final = sorted(key for key in TURNED_OFF if "controller" in API[key].listeners)
BROKERS, CONTROLLERS = 1, 2
# Kafka's words
BROKERS_TEXT: Final = (
    "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type BROKER"
)


class QuorumRequest:
    """One class for all that members of the quorum, and nodes of the cluster, ask."""

    def __init__(self, transport: QuorumTransport) -> None:
        self._transport = transport

    async def handle(self, context: RequestContext, request: Any) -> Any | Verdict:
        """What will not be answered closes the connection: its peer asks again over another."""
        try:
            return await self._transport.answer(request, lambda: context.connection.is_open)
        except TimeoutError:
            return CLOSE


class DescribeControllers:
    """DescribeCluster (key 60), of who asks for controllers (KIP-919). Versions 1 and 2; version 0 asks for
    brokers, which nobody is told of here, and has no code for it.

    Ignored: `include_fenced_brokers`.
    """

    def __init__(self, node: ControllerNode, endpoints: Callable[[], Endpoints]) -> None:
        self._node = node
        self._endpoints = endpoints

    def handle(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        if request.endpoint_type != CONTROLLERS:
            code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            text = f"Unsupported endpoint type {request.endpoint_type}"
            if request.endpoint_type == BROKERS:
                code, text = ErrorCode.MISMATCHED_ENDPOINT_TYPE, BROKERS_TEXT
            if context.api_version == 0:
                code = ErrorCode.INVALID_REQUEST
            return DescribeClusterResponse(error_code=code, error_message=text)
        response = DescribeClusterResponse(
            endpoint_type=CONTROLLERS,
            cluster_id=self._node.cluster_id,
            controller_id=self._node.driver.news.leader,
            brokers=[
                DescribeClusterBroker(node_id, host, port, None)
                for node_id, (host, port) in sorted(self._endpoints().items())
            ],
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response


def build_controller_handlers(
    node: ControllerNode, transport: QuorumTransport, settings: BrokerSettings, levels: LogLevels
) -> Mapping[int, Handle | Late]:
    """By API key."""
    handlers: dict[int, Handle | Late] = {key: QuorumRequest(transport).handle for key in OF_MEMBERS}
    forwarding = Forwarding(transport.channel, settings.request_timeout_ms)
    handlers |= command_handlers(forwarding, is_deletable=settings.topics.is_deletable)
    handlers |= {key: late("turned_off.TurnedOff", key) for key in TURNED_OFF_HERE}
    node_id = settings.node_id
    for key in ALTER_CONFIGS:
        handlers[key] = late("alter_configs.AlterControllerConfigs", forwarding, node_id, levels)
    cache = MetadataCache(node.publisher, node.cluster_id, node_id)
    lookup = ConfigLookup(node_id, settings.static_configs)
    handlers[32] = late("describe_configs.DescribeConfigs", cache, lookup, settings.shown, levels.listed)
    handlers[60] = DescribeControllers(node, transport.places.known).handle
    # Also of what a ForwardCommand may hold, which is served in no other way: who sends one has to know.
    shown = {*handlers, *COMMAND_KEYS, *UNDECIDED}
    handlers[18] = ApiVersions(
        shown,
        node.cluster_id,
        node.settings.node_id,
        lambda: node.publisher.image,
        "controller",
        lambda: node.driver.raft.voter_set.kraft_version,
    ).handle
    return handlers


def command_handlers(forwarding: Forwarding, *, is_deletable: bool) -> dict[int, Handle | Late]:
    """Of commands of administration clients, by API key: a broker's own where it has one, but for
    configurations, of which a broker judges more."""
    handlers: dict[int, Handle | Late] = {key: Forward(forwarding).handle for key in FORWARDED}
    handlers[19] = late("create_topics.CreateTopics", forwarding)
    handlers[20] = late("delete_topics.DeleteTopics", forwarding, is_deletable)
    handlers[57] = late("update_features.UpdateFeatures", forwarding)
    return handlers


def controller_server(
    node: ControllerNode,
    transport: QuorumTransport,
    budget: RequestBudget,
    settings: BrokerSettings,
    levels: LogLevels,
    runtime: Runtime,
) -> Server:
    """What is served at the addresses that it is started at."""
    handlers = build_controller_handlers(node, transport, settings, levels)
    return new_server(handlers, runtime, budget, settings.member_server)
