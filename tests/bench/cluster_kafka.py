"""The same seen of three nodes of Apache Kafka: for how long nothing is written while a partition moves, a
broker is stopped, or one is killed. Used by cluster.py.

Three replicas of each partition, of which two have to be in sync; all else as it comes. A partition moves as
its operators move leaders: another replica is preferred, and elected (AlterPartitionReassignments,
ElectLeaders). A kill costs the session (9 s by default) and an election: nothing is recovered, for every
record is on three nodes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from millrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millrace.protocol.messages.metadata import MetadataRequest
from tests.bench import client_moves
from tests.bench.report import Row
from tests.bench.wide_gaps import watching_all
from tests.bench.write_gaps import QUIET_S, probing, quantile_ms
from tests.compat.rolled.nodes import COUNT, KafkaNodes
from tests.live.client import Client
from tests.patience import PATIENCE_S, until

TOPIC = "spread"
VALUE = b"x" * 100
PREFERRED = 0
NAME = "Apache Kafka"


def leaders_of(client: Client, topic: str = TOPIC) -> dict[int, int]:
    """By partition."""
    (told,) = [one for one in client.ask("Metadata", MetadataRequest(None), 12).topics if one.name == topic]
    return {one.partition_index: one.leader_id for one in told.partitions}


def moved(folder: Path, moves: int) -> list[float]:
    folder.mkdir()
    with KafkaNodes(folder) as nodes, Client(nodes.addresses[0]) as client:
        nodes.create(TOPIC, 1)
        until(nodes.is_whole, "a replica is not in sync", pause_s=0.2)
        with probing(nodes.by_id, TOPIC, [0]) as gaps:
            for number in range(moves):
                lead(client, number % COUNT + 1)
                time.sleep(QUIET_S / 2)
        return sorted(gaps.gaps_s(0), reverse=True)[:moves]


def lead(client: Client, target: int, topic: str = TOPIC) -> None:
    """On return it leads partition 0."""
    order = [target, *(one for one in range(1, COUNT + 1) if one != target)]
    asked = [ReassignableTopic(topic, [ReassignablePartition(0, order)])]
    timeout_ms = int(PATIENCE_S * 1000)
    client.ask("AlterPartitionReassignments", AlterPartitionReassignmentsRequest(timeout_ms, topics=asked))

    def is_led() -> bool:
        wanted = [TopicPartitions(topic, [0])]
        client.ask("ElectLeaders", ElectLeadersRequest(PREFERRED, wanted, timeout_ms))
        return leaders_of(client, topic)[0] == target

    until(is_led, f"node {target} does not lead")


def ended(folder: Path, partitions: int, end: Callable[[KafkaNodes, int], None]) -> float:
    """Seconds without writes, the longest of the partitions of a broker that leads a third, and not the
    quorum."""
    folder.mkdir()
    with KafkaNodes(folder) as nodes, Client(nodes.addresses[0]) as client:
        nodes.create(TOPIC, COUNT * partitions)
        until(nodes.is_whole, "a replica is not in sync", pause_s=1.0)
        controller = quorum_leader(client)
        victim = next(node_id for node_id in nodes.by_id if node_id != controller)
        led = [index for index, leader in leaders_of(client).items() if leader == victim]
        with Client(nodes.by_id[victim]) as writing:
            for index in led:
                until(lambda index=index: not writing.send(TOPIC, [VALUE], index).error_code, "no leader yet")  # type: ignore[misc]
        with watching_all(nodes.by_id, TOPIC, led) as gaps:
            end(nodes, victim)
        return max(gaps.longest_s())


def quorum_leader(client: Client) -> int:
    asked = DescribeQuorumRequestTopicData("__cluster_metadata", [DescribeQuorumRequestPartitionData(0)])
    answer = client.ask("DescribeQuorum", DescribeQuorumRequest([asked]))
    return int(answer.topics[0].partitions[0].leader_id)


def rows_of_clients(folder: Path, moves: int, load: str) -> list[Row]:
    folder.mkdir()
    with KafkaNodes(folder) as nodes, Client(nodes.addresses[0]) as client:
        found = client_moves.moved(nodes, lambda topic, node: lead(client, node, topic), folder, moves)
    return client_moves.rows(NAME, found, load)


def rows(folder: Path, moves: int, partitions: int, rounds: int) -> list[Row]:
    gaps_s = moved(folder / "kafka-moved", moves)
    stops = [ended(folder / f"kafka-stopped{n}", partitions, KafkaNodes.stop) for n in range(rounds)]
    kills = [ended(folder / f"kafka-killed{n}", 10, KafkaNodes.kill) for n in range(rounds)]
    found = [
        Row(f"{NAME}: moved, median", f"{quantile_ms(gaps_s, 0.5):.0f} ms", f"{len(gaps_s)} moves"),
        Row(f"{NAME}: moved, p99", f"{quantile_ms(gaps_s, 0.99):.0f} ms"),
    ]
    for what, seconds in ((f"stopped, with {partitions} partitions", stops), ("killed: in all", kills)):
        beside = f"median of {rounds} rounds {1000 * statistics.median(seconds):.0f} ms"
        found.append(Row(f"{NAME}: {what}", f"{1000 * max(seconds):.0f} ms", beside))
    return found
