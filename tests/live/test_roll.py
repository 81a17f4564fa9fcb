"""All nodes of a cluster are restarted, one after the other, while producers and a group are at work."""

from __future__ import annotations

from pathlib import Path

from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.live.test_controllers import QUICK
from tests.live.traffic import Traffic

PARTITIONS = 6


def test_no_application_sees_a_rolling_restart(tmp_path: Path) -> None:
    """No error, nothing lost, nothing twice, and nothing out of order."""
    with LiveCombined(tmp_path, 3, QUICK) as cluster:
        with Client(cluster.addresses[0]) as client:
            client.create("rolled", PARTITIONS)
        traffic = Traffic(cluster.addresses, "rolled", PARTITIONS)
        traffic.start()
        try:
            for node in list(cluster.brokers.values()):
                assert node.stop() == 0
                node.start()
        finally:
            traffic.finish()
        assert traffic.told.errors == []
        count = traffic.check()
    longest_s = max(traffic.told.send_s)
    print(f"{count} records acknowledged, the longest send of {PARTITIONS} took {longest_s * 1000:.0f} ms")
