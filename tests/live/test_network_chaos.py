"""A short form of `make chaos` with faults of the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.live.network import Network, lacks
from tests.live.network_chaos import NODES, PARTITIONS, TOPIC, run
from tests.live.probe import Probe
from tests.live.test_controllers import QUICK
from tests.live.traffic import Traffic

pytestmark = pytest.mark.skipif(bool(lacks()), reason=lacks())
PLANS = {
    "block": (("leader cut from the other nodes", 4.5), ("unheard by the other nodes", 4.5)),
    "object": (("cut from the bucket", 2.0), ("leader deaf to the other nodes", 4.5), ("slow", 2.0)),
}


@pytest.mark.parametrize("log", sorted(PLANS))
def test_clients_lose_nothing_to_a_bad_network(tmp_path: Path, log: str) -> None:
    print(run(tmp_path, 0.0, 1, log, QUICK, PLANS[log]))


def test_a_network_that_does_not_heal_is_told(tmp_path: Path) -> None:
    """The probe itself: what a node led that nobody reaches takes no writes."""
    with Network(NODES) as network, LiveCombined(tmp_path, NODES, QUICK, network) as cluster:
        with Client(cluster.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        probe = Probe(cluster, Traffic(cluster.addresses, TOPIC, PARTITIONS), TOPIC, PARTITIONS)
        network.plug(2, False)
        with pytest.raises(AssertionError, match=r"partition \d takes no writes: "):
            probe.wait(2.0)
