"""ClusterView: who is in a cluster, who leads its quorum, and who leads which partition, as clients are told.

`view_of` is pure; `look` asks. Not here: how it is shown (cli/cluster.py), who is drained (draining.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from dataclasses import replace

from millrace.broker.cluster.client import ClusterClient
from millrace.protocol.dataclass import dataclass
from millrace.protocol.messages.describe_cluster import DescribeClusterResponse
from millrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponsePartitionData,
)
from millrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
)
from millrace.runtime.errors import Unavailable

METADATA_TOPIC = "__cluster_metadata"
LEARN_S = 3.0
LOOK_AGAIN_S = 0.1
QUORUM_S = 2.0  # for the controller that leads to answer: nobody may
Partition = tuple[str, int]  # topic, index


@dataclass(frozen=True, slots=True)
class NodeView:
    node_id: int
    is_broker: bool
    is_voter: bool
    address: str  # where clients reach it; "" of one that is no broker
    rack: str
    is_fenced: bool
    led: int  # partitions
    behind: int  # metadata records that it has not fetched yet; -1: unknown
    is_drained: bool = False  # it is given nothing by itself (draining.py); False where it was not asked
    is_silent: bool = False  # it was asked, and gave no answer: that is not known

    @property
    def roles(self) -> str:
        return ",".join(["broker"] * self.is_broker + ["controller"] * self.is_voter)


@dataclass(frozen=True, slots=True)
class ClusterView:
    cluster_id: str
    controller_id: int  # who leads the quorum; -1: nobody
    epoch: int
    high_watermark: int
    nodes: tuple[NodeView, ...]  # by id
    leaders: dict[Partition, int]  # -1: none
    # Of those that lack something: the brokers that are gone and led them, or whose write-ahead logs hold
    # some of them.
    waits_for: dict[Partition, tuple[int, ...]]
    epochs: dict[Partition, int]  # of leaders

    @property
    def leaderless(self) -> list[Partition]:
        return sorted(partition for partition, leader in self.leaders.items() if leader < 0)

    @property
    def lacking(self) -> list[Partition]:
        """That are led, and of which the log of a broker that is gone holds some."""
        return sorted(partition for partition in self.waits_for if self.leaders[partition] >= 0)

    def waiting_for(self, node_id: int) -> list[Partition]:
        return sorted(partition for partition, gone in self.waits_for.items() if node_id in gone)

    @property
    def serving(self) -> list[int]:
        """Brokers that clients are sent to."""
        return [node.node_id for node in self.nodes if node.is_broker and not node.is_fenced]

    @property
    def gone(self) -> list[int]:
        """Brokers that clients are not sent to: they are gone, or start."""
        return [node.node_id for node in self.nodes if node.is_broker and node.is_fenced]

    @property
    def answering(self) -> list[int]:
        """Of these, who does not stand still as far as is known."""
        return [node_id for node_id in self.serving if node_id not in self.silent]

    @property
    def takers(self) -> list[int]:
        """Of these, who is given partitions where nobody names one: all, where all are drained."""
        return [node_id for node_id in self.answering if node_id not in self.drained] or self.answering

    @property
    def drained(self) -> list[int]:
        return [node.node_id for node in self.nodes if node.is_drained]

    @property
    def silent(self) -> list[int]:
        return [node.node_id for node in self.nodes if node.is_silent]

    def with_drained(self, drained: Container[int], silent: Container[int] = ()) -> ClusterView:
        """`silent`: of whom it is not known."""
        nodes = tuple(
            replace(node, is_drained=node.node_id in drained, is_silent=node.node_id in silent)
            for node in self.nodes
        )
        return replace(self, nodes=nodes)


async def look(client: ClusterClient, teller: int | None = None) -> ClusterView:
    """What brokers know is told also where nobody leads the quorum; who leads what by `teller`, where one is
    named. Raises Unavailable, WireError."""
    brokers = await client.describe()
    asked = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    metadata = await (client.ask(asked) if teller is None else client.ask_node(teller, asked))
    return view_of(brokers, metadata, await _quorum(client))


async def when_serving(
    view: ClusterView, node_id: int, look_again: Callable[[], Awaitable[ClusterView]]
) -> ClusterView:
    """Of a broker that is gone, or starts: what is seen once it serves, or after `LEARN_S`. That one is
    ready, as it says itself, others learn a moment later."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + LEARN_S
    while node_id in view.gone and loop.time() < ends_s:
        await asyncio.sleep(LOOK_AGAIN_S)
        view = await look_again()
    return view


async def _quorum(client: ClusterClient) -> DescribeQuorumResponsePartitionData:
    """Of nobody where nobody answers for it."""
    nobody = DescribeQuorumResponsePartitionData(leader_id=-1, leader_epoch=-1, high_watermark=-1)
    asked = DescribeQuorumRequestTopicData(METADATA_TOPIC, [DescribeQuorumRequestPartitionData()])
    try:
        response = await client.ask(DescribeQuorumRequest([asked]), QUORUM_S)
    except Unavailable:
        return nobody
    found = response.topics[0].partitions[0] if response.topics and not response.error_code else nobody
    return nobody if found.error_code else found


def view_of(
    brokers: DescribeClusterResponse,
    metadata: MetadataResponse,
    quorum: DescribeQuorumResponsePartitionData,
) -> ClusterView:
    leaders = leaders_of(metadata)
    waits_for = {
        (topic.name or "", one.partition_index): tuple(one.offline_replicas or one.replica_nodes)
        for topic in metadata.topics
        for one in topic.partitions
        if one.offline_replicas or (_leader_of(one) < 0 and one.replica_nodes)
    }
    led: dict[int, int] = {}
    for leader in leaders.values():
        led[leader] = led.get(leader, 0) + 1
    voters = {one.replica_id for one in quorum.current_voters}
    ends = {one.replica_id: one.log_end_offset for one in (*quorum.current_voters, *quorum.observers)}
    end = ends.get(quorum.leader_id, -1)
    registered = {broker.broker_id: broker for broker in brokers.brokers}
    nodes = []
    for node_id in sorted({*registered, *voters}):
        broker, own_end = registered.get(node_id), ends.get(node_id, -1)
        nodes.append(
            NodeView(
                node_id,
                broker is not None,
                node_id in voters,
                "" if broker is None else f"{broker.host}:{broker.port}",
                (broker.rack if broker is not None else None) or "",
                broker is not None and broker.is_fenced,
                led.get(node_id, 0),
                -1 if min(end, own_end) < 0 else max(0, end - own_end),
            )
        )
    return ClusterView(
        brokers.cluster_id,
        quorum.leader_id,
        quorum.leader_epoch,
        quorum.high_watermark,
        tuple(nodes),
        leaders,
        waits_for,
        epochs_of(metadata),
    )


def leaders_of(metadata: MetadataResponse) -> dict[Partition, int]:
    return {
        (topic.name or "", one.partition_index): _leader_of(one)
        for topic in metadata.topics
        for one in topic.partitions
    }


def _leader_of(partition: MetadataResponsePartition) -> int:
    """-1: none. Who serves in its place what objects hold, as long as nobody can lead it, is in no ISR."""
    return partition.leader_id if partition.leader_id in partition.isr_nodes else -1


def epochs_of(metadata: MetadataResponse) -> dict[Partition, int]:
    return {
        (topic.name or "", one.partition_index): one.leader_epoch
        for topic in metadata.topics
        for one in topic.partitions
    }
