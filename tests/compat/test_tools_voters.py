"""Kafka's own tools format a directory, and add, remove and describe voters; a list becomes voters of the log
by kafka-features."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.compat.jvm import java_command
from tests.live.cluster import CLUSTER, LiveCombined
from tests.live.test_controllers import QUICK
from tests.live.voters import JOINS, LiveVoters
from tests.patience import PATIENCE_S, until

QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"


def tool(*words: str, code: int = 0) -> str:
    done = subprocess.run(java_command(*words), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def properties(cluster: LiveVoters, node_id: int, folder: Path) -> str:
    """A node's settings as Kafka's tools read them."""
    path = folder / f"node{node_id}.properties"
    listener = f"CONTROLLER://{cluster.controllers[node_id]}"
    lines = {
        "process.roles": "controller",
        "node.id": node_id,
        "log.dirs": cluster.metadata_dir(node_id),
        "listeners": listener,
        "advertised.listeners": listener,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
        "controller.quorum.bootstrap.servers": cluster.controllers[1],
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return str(path)


def status(cluster: LiveCombined) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Voters and observers, as the tool shows them."""
    running = next(node for node in cluster.brokers.values() if node.is_running())
    shown = tool(QUORUM, "--bootstrap-server", running.address, "describe", "--status")
    found = [re.findall(rf"{name}: +(.*)", shown)[0] for name in ("CurrentVoters", "CurrentObservers")]
    voters, observers = map(json.loads, found)
    return voters, observers


def test_kafkas_tools_format_add_describe_and_remove(tmp_path: Path) -> None:
    """The first node's directory is one that kafka-storage made."""
    cluster = LiveVoters(tmp_path, 2, QUICK, is_formatted=False)
    settings = {node_id: properties(cluster, node_id, tmp_path) for node_id in cluster.brokers}
    tool("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", settings[1], "--standalone")
    cluster.format(2, JOINS)
    with cluster:
        voters, observers = status(cluster)
        assert [one["id"] for one in voters] == [1]
        assert [one["id"] for one in observers] == [2]
        asked = QUORUM, "--bootstrap-controller", cluster.controllers[1], "--command-config", settings[2]
        added = tool(*asked, "add-controller")
        assert "Added controller 2 with directory id" in added
        voters, observers = status(cluster)
        assert [one["endpoints"] for one in voters] == [
            [f"CONTROLLER://{cluster.controllers[node_id]}"] for node_id in (1, 2)
        ]
        again = tool(*asked, "add-controller", code=1)
        assert "DuplicateVoterException" in again
        gone = ("remove-controller", "--controller-id", "1", "--controller-directory-id")
        brokers = QUORUM, "--bootstrap-server", cluster.brokers[2].address
        assert "VoterNotFoundException" in tool(*brokers, *gone, "AAAAAAAAAAAAAAAAAAAABQ", code=1)
        tool(*brokers, *gone, voters[0]["directoryId"])
        until(lambda: cluster.leader() == 2, "the leader goes on that is removed")
        voters, observers = status(cluster)
        assert [one["id"] for one in voters] == [2]
        assert [one["id"] for one in observers] == [1]


def test_kafka_features_raises_a_list_to_the_log(tmp_path: Path) -> None:
    """While it runs; nodes that are started again, with the list still in their settings, go on with it."""
    features = "org.apache.kafka.tools.FeatureCommand"
    with LiveCombined(tmp_path, 3, QUICK) as cluster:
        asked = features, "--bootstrap-server", cluster.addresses[0]
        tool(*asked, "upgrade", "--feature", "kraft.version=1")
        shown = tool(*asked, "describe")
        assert re.search(r"kraft.version\s.*FinalizedVersionLevel: 1", shown)
        voters, _ = status(cluster)
        assert [one["id"] for one in voters] == [1, 2, 3]
        assert all(len(one["directoryId"]) == 22 and one["endpoints"] for one in voters)
        refused = tool(*asked, "downgrade", "--feature", "kraft.version=0", code=1)
        assert "no way back" in refused
        for node in cluster.brokers.values():
            assert node.stop() == 0
            node.start()
        assert status(cluster)[0] == voters
