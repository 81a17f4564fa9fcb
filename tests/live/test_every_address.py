"""Controllers that listen on every address, each on a machine of its own, and on the same port."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.cluster import LiveCombined, logged
from tests.live.network import Network, lacks
from tests.live.test_controllers import QUICK

PORT = 9093


@pytest.mark.skipif(bool(lacks()), reason=lacks())
def test_controllers_on_every_address_find_one_another(tmp_path: Path) -> None:
    """As containers are set up: who leads is where the list says that it is, and not where it listens, which
    would be a node's own listener to each of the others."""
    with Network(3) as network:
        cluster = LiveCombined(tmp_path, 3, QUICK, network)
        voters = ",".join(f"{node_id}@{network.address(node_id)}:{PORT}" for node_id in cluster.brokers)
        for node in cluster.brokers.values():
            listeners = f"PLAINTEXT://0.0.0.0:{node.port},CONTROLLER://0.0.0.0:{PORT}"
            advertised = f"PLAINTEXT://{node.address}"
            node.override({"controller.quorum.voters": voters, "listeners": listeners})
            node.override({"advertised.listeners": advertised})
        with cluster:
            leader = cluster.leader()
            assert leader in cluster.brokers
            assert not any(logged(node, "quorum: no answer.*INVALID") for node in cluster.brokers.values())
