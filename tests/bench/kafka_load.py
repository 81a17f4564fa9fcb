"""Apache Kafka beside elections.py and three_nodes.py: what elections, a quorum that is away, and two nodes
more cost its producers. Used by cluster.py.

The same loads on the same machine, in the same pairs. One replica of each partition, as one of our brokers
serves it: what copies cost is no part of these figures.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import uvloop

from tests.bench.cluster_kafka import leaders_of, quorum_leader
from tests.bench.elections import Elections
from tests.bench.produce_load import make_topic, until_written
from tests.bench.report import Row
from tests.bench.three_nodes import LED, TOPIC, Side, compared
from tests.compat.rolled.nodes import COUNT, OF_BOTH, KafkaNodes
from tests.cpu import cpu_seconds
from tests.live.client import Client
from tests.patience import until

NAME = "Apache Kafka"
BROKER = COUNT + 1
APART = {**dict.fromkeys(range(1, COUNT + 1), "controller"), BROKER: "broker"}


class KafkaVoters:
    def __init__(self, nodes: KafkaNodes) -> None:
        self._nodes = nodes
        self.pid, self.kill, self.start = nodes.pid, nodes.kill, nodes.begin

    def leader(self, is_other_than: int = -1) -> int:
        found = -1

        def is_led() -> bool:
            nonlocal found
            with contextlib.suppress(OSError), Client(self._nodes.by_id[BROKER]) as client:
                found = quorum_leader(client)
            return found not in (-1, is_other_than)

        until(is_led, "no controller leads", pause_s=0.1)
        return found


class KafkaNode:
    """One of them, as it is loaded."""

    def __init__(self, nodes: KafkaNodes, node_id: int) -> None:
        self.port, self.pid = int(nodes.by_id[node_id].rpartition(":")[2]), nodes.pid(node_id)

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)


def elected(folder: Path, pairs: int, window_s: float) -> list[Row]:
    folder.mkdir()
    with KafkaNodes(folder, APART, replicas=1) as nodes:
        port = int(nodes.by_id[BROKER].rpartition(":")[2])
        return uvloop.run(Elections(KafkaVoters(nodes), port, pairs, window_s, NAME).rows())


def through_three(folder: Path, pairs: int, window_s: float) -> list[Row]:
    (folder / "one").mkdir(parents=True)
    (folder / "three").mkdir()
    with (
        KafkaNodes(folder / "one", {1: OF_BOTH[1]}, replicas=1) as one,
        KafkaNodes(folder / "three", replicas=1) as three,
    ):
        return uvloop.run(_compared(one, three, pairs, window_s))


async def _compared(one: KafkaNodes, three: KafkaNodes, pairs: int, window_s: float) -> list[Row]:
    return await compared(await _side(one), await _side(three), None, pairs, window_s, f"{NAME}: ")


async def _side(nodes: KafkaNodes) -> Side:
    made = [KafkaNode(nodes, node_id) for node_id in nodes.by_id]
    await make_topic(made[0].port, TOPIC, LED * len(made))
    with Client(nodes.addresses[0]) as client:
        led: dict[int, int] = {}

        def is_led() -> bool:
            with contextlib.suppress(ValueError):  # the node has not heard of the topic yet
                led.update(leaders_of(client, TOPIC))
            return bool(led) and -1 not in led.values()

        until(is_led, "a partition has no leader", pause_s=0.1)
    shares = [[index for index, leader in led.items() if leader == one] for one in nodes.by_id]
    for node, share in zip(made, shares, strict=True):
        await asyncio.to_thread(until_written, node.port, TOPIC, share)
    return Side(made, shares)
