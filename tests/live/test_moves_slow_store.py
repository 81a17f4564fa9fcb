"""Partitions move around three nodes over a store as slow as one in a region, while clients write and read
them: all that was acknowledged is there once and in order, and reads and writes go on."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.live.s3_server import S3Server
from tests.live.slow_proxy import SlowProxy
from tests.live.test_brokers import leaders
from tests.live.traffic import Traffic
from tests.patience import until

TOPIC, PARTITIONS = "spread", 4
MOVES, KILLS = 50, 3


@pytest.fixture
def slow_cluster(tmp_path: Path) -> Iterator[LiveCombined]:
    with S3Server(tmp_path / "s3") as server, SlowProxy(server.port) as proxy:
        server.make("lake")
        settings = {"s3.data.buckets": proxy.slow(server.address("lake"))}
        with LiveCombined(tmp_path / "nodes", 3, settings) as cluster:
            with Client(cluster.addresses[0]) as client:
                client.create(TOPIC, PARTITIONS)
            yield cluster


def move(client: Client, any_broker: LiveBroker, index: int, target: int) -> None:
    client.move(TOPIC, [index], target)
    until(lambda: leaders(any_broker)[index] == target, "it stays")


def test_partitions_move_under_load(slow_cluster: LiveCombined) -> None:
    """Fifty moves, some of a partition that has just moved; idempotent producers, and a group. Nothing is
    lost or doubled, nobody is told of an error."""
    cluster, drawn = slow_cluster, random.Random(1)
    traffic = Traffic(cluster.addresses, TOPIC, PARTITIONS)
    traffic.start()
    try:
        with Client(cluster.addresses[0]) as client:
            for _ in range(MOVES):
                move(client, cluster.brokers[1], drawn.randrange(PARTITIONS), drawn.randint(1, 3))
                time.sleep(drawn.uniform(0, 0.15))
    finally:
        traffic.finish()
    count = traffic.check()
    assert not traffic.told.errors, traffic.told.errors[:3]
    print(f"{count} records acknowledged, longest send {max(traffic.told.send_s):.2f} s")


def test_the_broker_that_it_moved_from_is_killed(slow_cluster: LiveCombined) -> None:
    """Right after a move, before it has uploaded what it had: its log is recovered, by itself or by another,
    and all that was acknowledged is there."""
    cluster, drawn = slow_cluster, random.Random(2)
    traffic = Traffic(cluster.addresses, TOPIC, PARTITIONS)
    traffic.start()
    try:
        for number in range(KILLS):
            until(lambda: -1 not in leaders(cluster.brokers[1]).values(), "a partition has no leader")
            victim = drawn.choice([node_id for node_id in cluster.brokers if node_id != cluster.leader()])
            others = [node_id for node_id in cluster.brokers if node_id != victim]
            led = [index for index, leader in leaders(cluster.brokers[others[0]]).items() if leader == victim]
            with Client(cluster.brokers[others[0]].address) as client:
                client.move(TOPIC, led or [0], others[number % 2])
                time.sleep(drawn.choice([0.0, 0.02, 0.05]))
                cluster.brokers[victim].kill()
            time.sleep(drawn.choice([0.0, 5.0]))
            cluster.brokers[victim].start()
    finally:
        traffic.finish()
    traffic.check()
    assert not traffic.told.errors, traffic.told.errors[:3]
