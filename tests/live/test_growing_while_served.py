"""A node with data becomes three, and three one again, while producers and a group are at work: nothing is
stopped but the process that takes no others, and that one is replaced by one that is loaded by then."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.live import LiveBroker, warm
from tests.live.client import Client
from tests.live.growing import Growing
from tests.live.test_brokers import PARTITIONS, TOPIC, leaders
from tests.live.test_failover import values
from tests.live.traffic import Traffic
from tests.patience import PATIENCE_S, until


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
            assert "kraft.version         0                   1" in cluster.command("upgrade")
            cluster.grow()
            assert "kraft.version         1                   1" in cluster.command("upgrade")
            assert "3 voters" in cluster.command("status")
            nodes = json.loads(cluster.command("nodes", "--json"))["nodes"]
            led = [one["partitions_led"] for one in nodes]
            assert max(led) - min(led) <= 1 <= min(led)
            acknowledge_everywhere(traffic)
            cluster.shrink()
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


def test_a_start_that_would_be_refused_ends_nobody(tmp_path: Path) -> None:
    """A mistaken id stands in the new command: the former goes on."""
    with LiveBroker(tmp_path, {"node.id": "1"}) as node:
        serving = node.pid
        for name, value in (("node.id", "2"), ("cluster.id", "AAAAAAAAAAAAAAAAAAAAAQ")):
            node.override({name: value})
            refused = warm.run([*node.command()[1:], "--replace", str(serving)])
            assert refused.returncode == 1
            assert name in refused.stderr
            assert "nothing was ended" in refused.stderr
            node.override({"node.id": "1"})
        with Client(node.address) as client:
            client.create("goes-on")
        assert node.is_running()


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


def test_who_waits_for_a_former_process_can_be_ended(tmp_path: Path) -> None:
    """That one stands still, and ends in order once it goes on; the node can be started then."""
    with LiveBroker(tmp_path) as node:
        former = node._process
        assert former is not None
        os.kill(former.pid, signal.SIGSTOP)
        try:
            node.begin("--replace", str(former.pid))
            until(lambda: f"process {former.pid} is told to end" in node.run_log(), "nobody is told to end")
            assert node.stop() == 128 + signal.SIGTERM
            assert "this one does not go on in its place" in node.run_log()
        finally:
            os.kill(former.pid, signal.SIGCONT)
        assert former.wait(PATIENCE_S) == 0
        assert former.stdout is not None
        former.stdout.close()
        node.start()
