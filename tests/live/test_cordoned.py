"""`cordoned.log.dirs` in a broker's file: it is given no partitions from its start on."""

from __future__ import annotations

from pathlib import Path

from tests.live.client import Client
from tests.live.test_brokers import leaders
from tests.live.test_controllers import QUICK
from tests.live.voters import LiveVoters


def test_a_broker_cordoned_by_its_file_is_given_no_partitions(tmp_path: Path) -> None:
    """`status` says so, `undrain` that it cannot help, and without the line the broker takes its turn."""
    cluster = LiveVoters(tmp_path, 2, QUICK)
    cluster.brokers[2].override({"cordoned.log.dirs": "*"})
    with cluster:
        with Client(cluster.addresses[0]) as client:
            client.create("early", 4)
            assert set(leaders(cluster.brokers[1], "early").values()) == {1}
        assert "serves, drained" in cluster.command("nodes")
        assert "its own settings" in cluster.command("undrain", "2", code=2)
        assert cluster.brokers[2].stop() == 0
        cluster.brokers[2].override({"cordoned.log.dirs": ""})
        cluster.brokers[2].start()
        with Client(cluster.addresses[0]) as client:
            client.create("late", 4)
            assert set(leaders(cluster.brokers[1], "late").values()) == {1, 2}
