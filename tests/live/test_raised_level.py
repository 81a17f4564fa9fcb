"""The levels of `millrace.version` and `kraft.version` are raised in a cluster of real processes while
clients use it."""

from __future__ import annotations

from pathlib import Path

from millrace.protocol.messages.api_versions import ApiVersionsRequest
from millrace.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.live.earlier_node import LEVEL
from tests.live.test_brokers import leaders
from tests.live.test_controllers import QUICK
from tests.live.traffic import Traffic
from tests.patience import PATIENCE_S, until

TOPIC, PARTITIONS = "raised", 6
BEFORE, AFTER = 2, 3  # of millrace.version: what a moved partition waits for changes between them


def finalized(node: LiveBroker) -> dict[str, int]:
    with Client(node.address) as client:
        told = client.ask("ApiVersions", ApiVersionsRequest("live", "1"))
    return {one.name: one.max_version_level for one in told.finalized_features}


def raise_level(node: LiveBroker, feature: str, level: int) -> None:
    request = UpdateFeaturesRequest(int(PATIENCE_S * 1000), [FeatureUpdateKey(feature, level)])
    with Client(node.address) as client:
        answer = client.ask("UpdateFeatures", request)
    assert answer.error_code == 0, answer


def move_one(cluster: LiveCombined, index: int) -> None:
    """To the next node, which leads it on return."""
    witness = cluster.brokers[1]
    target = leaders(witness, TOPIC)[index] % len(cluster.brokers) + 1
    with Client(witness.address) as client:
        client.move(TOPIC, [index], target)
    until(lambda: leaders(witness, TOPIC)[index] == target, "it does not move")


def test_levels_are_raised_under_load_and_hold_over_restarts(tmp_path: Path) -> None:
    """No application is told of an error, and nothing is lost: a partition moves at either level, then
    one node is restarted, and one is killed."""
    cluster = LiveCombined(tmp_path, 3, QUICK)
    for node in cluster.brokers.values():
        node.module = "tests.live.earlier_node"
        node._env[LEVEL] = str(BEFORE)
    with cluster:
        with Client(cluster.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        nodes = [*cluster.brokers.values()]
        assert [finalized(node).get("millrace.version") for node in nodes] == [BEFORE] * 3
        traffic = Traffic(cluster.addresses, TOPIC, PARTITIONS)
        traffic.start()
        try:
            move_one(cluster, 0)
            raise_level(nodes[0], "millrace.version", AFTER)
            raise_level(nodes[1], "kraft.version", 1)
            levels = {"millrace.version": AFTER, "kraft.version": 1}
            until(lambda: all(levels.items() <= finalized(node).items() for node in nodes), "not finalized")
            move_one(cluster, 1)
            nodes[0].restart()
            assert not traffic.told.errors
            nodes[2].kill()
            nodes[2].start()
            assert all(levels.items() <= finalized(node).items() for node in nodes)
            move_one(cluster, 2)
        finally:
            traffic.finish()
        print(f"{traffic.check()} records")
        assert not [one for one in traffic.told.errors if one.startswith("producer")]
