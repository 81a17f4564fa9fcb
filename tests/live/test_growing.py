"""A node with data becomes three, and three become one again; new voters that are started first wait."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.live import LiveBroker, warm
from tests.live.client import Client
from tests.live.cluster import LiveCombined, LiveNodes, logged
from tests.live.test_brokers import PARTITIONS, TOPIC, leaders
from tests.live.test_controllers import QUICK
from tests.live.test_failover import check_all, send, values
from tests.patience import PATIENCE_S, until

CHANGED = {"controller.quorum.voters.change.accept": "true"}
SAID = (
    r"not ready: joining the quorum of controllers \(the metadata log of this voter is empty, and the bucket"
)


class Alone(LiveNodes):
    """Node 1 as a quorum of one, in the folder that it has as one of three."""

    def __init__(self, folder: Path, **settings: str) -> None:
        super().__init__()
        settings["s3.data.buckets"] = f"0@file://{folder}/bucket"
        self.brokers = {1: LiveBroker(folder / "node1", settings, wal="64MiB")}


def fill_alone(folder: Path) -> None:
    """120 records, and an orderly stop."""
    with Alone(folder) as alone:
        with Client(alone.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        send(alone, values(0, 120))
        assert alone.brokers[1].stop() == 0


def cluster_of(folder: Path, overrides: dict[str, str]) -> LiveCombined:
    """Three nodes, of the cluster that node 1 has been."""
    (properties,) = (folder / "node1").rglob("meta.properties")
    (cluster_id,) = [line[11:] for line in properties.read_text().splitlines() if line[:11] == "cluster.id="]
    return LiveCombined(folder, 3, {**overrides, "cluster.id": cluster_id})


def command(cluster: LiveNodes, *words: str) -> None:
    asked = [sys.executable, "-m", "millrace.broker", "cluster", *words]
    subprocess.run([*asked, "--bootstrap-server", cluster.addresses[0]], check=True, timeout=PATIENCE_S)


def test_one_becomes_three_and_one_again(tmp_path: Path) -> None:
    fill_alone(tmp_path)
    with cluster_of(tmp_path, QUICK) as three:
        check_all(three, values(0, 120))
        command(three, "spread")
        assert sorted(leaders(three.brokers[1]).values()) == sorted([1, 2, 3] * 2)
        send(three, values(120, 120))
        command(three, "drain", "2")
        command(three, "drain", "3")
        for node_id in (3, 2, 1):
            assert three.brokers[node_id].stop() == 0
    without = Alone(tmp_path)
    refused = warm.run(without.brokers[1].command()[1:])
    assert refused.returncode == 1, refused
    assert "this node last voted in a quorum of the nodes 1, 2, 3 " in refused.stderr
    with Alone(tmp_path, **CHANGED) as alone:
        send(alone, values(240, 60))
        check_all(alone, values(0, 300))
    with Alone(tmp_path) as alone:  # the word is for one start
        check_all(alone, values(0, 300))


def test_empty_voters_elect_nobody_without_the_one_that_knows(tmp_path: Path) -> None:
    fill_alone(tmp_path)
    three = cluster_of(tmp_path, QUICK)
    try:
        for node_id in (2, 3):
            three.brokers[node_id].begin()
        until(lambda: all(logged(three.brokers[one], SAID) for one in (2, 3)), "not said")
        time.sleep(3.0)  # in which they would have elected one of them
        assert all(three.brokers[one].metrics()["millrace_quorum_epoch"] == 0 for one in (2, 3))
        three.brokers[1].begin()
        for node in three.brokers.values():
            node.wait_ready()
        check_all(three, values(0, 120))
    finally:
        three.__exit__(None, None, None)


def test_a_node_gives_up_nothing_to_voters_of_another_past(tmp_path: Path) -> None:
    """Two new voters were given an empty bucket of their own, and have elected one of them: the node that has
    the metadata knows that all of it is committed, takes nothing of theirs, and ends."""
    fill_alone(tmp_path)
    three = cluster_of(tmp_path, QUICK)
    strangers = [three.brokers[2], three.brokers[3]]
    try:
        for node in strangers:
            node._overrides["s3.data.buckets"] = f"0@file://{tmp_path}/other"
            node.begin()
        for node in strangers:
            node.wait_ready()
        for node in strangers * 2:  # so that their epoch is above that of the node
            node.restart()
        three.brokers[1].begin()
        assert three.brokers[1].wait_end() != 0
        assert logged(three.brokers[1], "is committed here: who leads knows another past")
        assert logged(three.brokers[1], "cannot start")
    finally:
        three.__exit__(None, None, None)
    with Alone(tmp_path, **CHANGED) as alone:
        check_all(alone, values(0, 120))
