"""The cluster's metadata as handlers see it: the current image, and where a client can reach each node.

Reads only; changes go through the controller's channel. The image is immutable and replaced whole, so a
handler that takes it once sees one state.
"""

from __future__ import annotations

from millrace.broker.requests.request import ConnectionInfo
from millrace.broker.settings.addresses import AdvertisedAddresses
from millrace.broker.settings.dynamic_values import BrokerValues
from millrace.broker.told_replicas import ToldReplicas
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.protocol.dataclass import dataclass

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")


@dataclass(frozen=True, slots=True)
class NodeAddress:
    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


class MetadataCache:
    """`addresses` are set once the listeners are bound; `broker_values` are what is set dynamically for this
    node."""

    def __init__(self, publisher: MetadataPublisher, cluster_id: str, node_id: int) -> None:
        self._publisher = publisher
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.addresses = AdvertisedAddresses(())
        self.broker_values = BrokerValues(lambda: self.image.configs, node_id)
        self._told: tuple[MetadataImage, ToldReplicas] | None = None

    @property
    def image(self) -> MetadataImage:
        return self._publisher.image

    def nodes(self, connection: ConnectionInfo) -> list[NodeAddress]:
        """Every registered broker with an address on the listener that this client came in by."""
        found = []
        for broker in self.image.brokers:
            if broker.broker_id == self.node_id:
                host, port = self.addresses.for_client(connection.listener, connection.local_host)
            else:
                endpoint = broker.endpoint(connection.listener)
                if endpoint is None:
                    continue
                host, port = endpoint.host, endpoint.port
            found.append(NodeAddress(broker.broker_id, host, port, broker.rack, broker.is_fenced))
        return found

    def node(self, node_id: int, connection: ConnectionInfo) -> NodeAddress | None:
        return next((node for node in self.nodes(connection) if node.node_id == node_id), None)

    def leader(self, topic_id: bytes, index: int) -> tuple[int, int] | None:
        """Who leads a partition as clients are told it, -1 for nobody that is there, and in which epoch; None
        where there is no such partition."""
        image = self.image
        state = image.topics.partition(topic_id, index)
        if state is None:
            return None
        if self._told is None or self._told[0] is not image:
            self._told = image, ToldReplicas(image)  # a request may name thousands of partitions
        return self._told[1].of(topic_id, index, state).leader, state.leader_epoch

    def told(self, connection: ConnectionInfo, *, has_readers: bool = False) -> ToldReplicas:
        """What clients of a listener are told of partitions."""
        image = self.image
        unreachable = (
            broker.broker_id
            for broker in image.brokers
            if broker.broker_id != self.node_id and broker.endpoint(connection.listener) is None
        )
        return ToldReplicas(image, frozenset(unreachable), has_readers=has_readers)

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self.image.topics.by_id(topic_id)
        return None if topic is None else topic.name
