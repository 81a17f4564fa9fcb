"""A node with data becomes three, and three one again, while producers and a group are at work: nothing is
stopped but the process that takes no others, and that one is replaced by one that is loaded by then."""

from __future__ import annotations

import json
from pathlib import Path

from tests.live import LiveBroker, warm
from tests.live.client import Client
from tests.live.test_brokers import PARTITIONS, TOPIC, leaders
from tests.live.test_controllers import QUICK
from tests.live.test_failover import values
from tests.live.traffic import Traffic
from tests.live.voters import JOINS, LiveVoters
from tests.patience import until


class Growing(LiveVoters):
    """Node 1 is its own whole quorum at first, in a folder that it made itself; the others are not there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 3, QUICK, is_formatted=False)
        self.listeners = self.brokers[1]._overrides.pop("listeners")
        for key in ("cluster.id", "controller.quorum.bootstrap.servers", "controller.listener.names"):
            del self.brokers[1]._overrides[key]

    def begin(self) -> None:
        self.brokers[1].start()

    def join(self, node_id: int) -> None:
        (properties,) = (self.brokers[1].folder).rglob("meta.properties")
        lines = dict(line.split("=", 1) for line in properties.read_text().splitlines() if "=" in line)
        self.brokers[node_id].override({"cluster.id": lines["cluster.id"]})
        self.format(node_id, JOINS)
        self.brokers[node_id].start()
        self.add(node_id)


def test_one_becomes_three_and_one_again_while_clients_work(tmp_path: Path) -> None:
    with Growing(tmp_path) as cluster:
        node = cluster.brokers[1]
        with Client(node.address) as client:
            client.create(TOPIC, PARTITIONS)
            for index, value in enumerate(values(0, PARTITIONS)):
                client.produce(TOPIC, [b"%d" % (3_000_000 + 3 * int(value) + 2)], index)
        traffic = Traffic([node.address], TOPIC, PARTITIONS)
        traffic.start()
        try:
            refused = cluster.command("upgrade", "kraft.version=1", code=1)
            assert "start it once with CONTROLLER in its listeners" in refused
            node.override({"listeners": cluster.listeners})
            node.replace()
            pid = node.pid
            assert "kraft.version is 1 (it was 0)" in cluster.command("upgrade", "kraft.version=1")
            for node_id in (2, 3):
                cluster.join(node_id)
            assert "3 voters" in cluster.command("status")
            cluster.command("spread")
            nodes = json.loads(cluster.command("nodes", "--json"))["nodes"]
            led = [one["partitions_led"] for one in nodes]
            assert max(led) - min(led) <= 1 <= min(led)
            acknowledge_everywhere(traffic)
            for node_id in (3, 2):
                cluster.command("drain", str(node_id))
                cluster.command("remove-voter", str(node_id))
                assert cluster.brokers[node_id].stop() == 0
                cluster.command("unregister", str(node_id))
            assert [*leaders(node).values()] == [1] * PARTITIONS
            status = cluster.command("status")
            assert "1 node," in status
            assert "1 voter," in status
            acknowledge_everywhere(traffic)
            assert node.pid == pid
            node.restart()  # as what it is now: the log names its only voter
        finally:
            traffic.finish()
        assert traffic.told.errors == []
        assert traffic.check()


def acknowledge_everywhere(traffic: Traffic) -> None:
    """Returns when each partition has taken records of the traffic that were sent since."""
    with traffic.lock:
        before = [len(one) for one in traffic.told.acknowledged]
    until(
        lambda: all(len(one) > count for one, count in zip(traffic.told.acknowledged, before, strict=True)),
        "a partition takes no writes",
    )


def test_a_process_that_serves_another_folder_is_not_replaced(tmp_path: Path) -> None:
    """Neither is one that is not there: nothing is told to end, and the exit code is 1."""
    with LiveBroker(tmp_path / "one") as one, LiveBroker(tmp_path / "two") as two:
        refused = warm.run([*two.command()[1:], "--replace", str(one.pid)])
        assert refused.returncode == 1
        assert f"process {one.pid} is no node with the metadata log" in refused.stderr
        assert one.is_running()
        assert two.is_running()
        gone = one.pid
        one.kill()
        refused = warm.run([*one.command()[1:], "--replace", str(gone)])
        assert refused.returncode == 1
        assert f"there is no process {gone} to replace" in refused.stderr
