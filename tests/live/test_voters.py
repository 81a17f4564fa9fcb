"""Voters of real processes come and go while clients go on."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from millrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from tests.live import free_port
from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.live.test_brokers import PARTITIONS, TOPIC
from tests.live.test_controllers import QUICK
from tests.live.test_failover import check_all, send, values
from tests.live.voters import JOINS, LiveVoters
from tests.patience import until


class Sending:
    """Records one after the other, each acknowledged, until the end of the block."""

    def __init__(self, cluster: LiveCombined) -> None:
        self.sent: list[bytes] = []
        self._cluster = cluster
        self._is_over = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._is_over:
                more = values(len(self.sent), 10)
                send(self._cluster, more)
                self.sent += more
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> Sending:
        self._thread.start()
        return self

    def __exit__(self, *words: object) -> None:
        self._is_over = True
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def test_one_becomes_three_while_clients_send(tmp_path: Path) -> None:
    """Added one by one to a node that was alone; then the leader removes itself, and another is killed.
    Nothing that was acknowledged is missing, and nothing came twice."""
    with LiveVoters(tmp_path, 3, QUICK) as cluster:
        with Client(cluster.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        with Sending(cluster) as sending:
            assert "voter 2" in cluster.add(2)
            assert "voter 3" in cluster.add(3)
            again = cluster.command("add-voter", "3", "--at", cluster.controllers[3], code=2)
            assert "it is a voter already" in again
            assert "3 voters" in cluster.command("status")
            assert cluster.leader() == 1
            cluster.command("remove-voter", "1")
            until(lambda: cluster.leader() != 1, "the leader goes on that is removed")
            assert "2 voters" in cluster.command("status")
            cluster.add(1)
        check_all(cluster, sending.sent)
        leader = cluster.leader()
        cluster.brokers[leader].kill()
        until(lambda: cluster.leader() != leader, "nobody else leads")


def test_a_voter_whose_disk_is_lost_is_replaced(tmp_path: Path) -> None:
    """With an empty directory it follows and is no voter, until the one that is gone is removed and it is
    added."""
    with LiveVoters(tmp_path, 3, QUICK) as cluster:
        for node_id in (2, 3):
            cluster.add(node_id)
        with Client(cluster.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        send(cluster, values(0, 60))
        cluster.brokers[3].kill()
        shutil.rmtree(cluster.metadata_dir(3))
        cluster.format(3, JOINS)
        cluster.brokers[3].start()
        assert "refused" in cluster.command("add-voter", "3", "--at", cluster.controllers[3], code=1)
        cluster.command("remove-voter", "3")
        assert "2 voters" in cluster.command("status")
        cluster.add(3, "--directory", cluster.directory_id(3))  # the lost one may have fetched just now
        assert "3 voters" in cluster.command("status")
        other = next(one for one in (1, 2) if one == cluster.leader())
        assert cluster.brokers[other].stop() == 0
        until(lambda: cluster.leader() in {1, 2, 3} - {other}, "the two others elect nobody")
        send(cluster, values(60, 60))
        check_all(cluster, values(0, 120))


def controllers_at(cluster: LiveVoters, asked: int) -> dict[int, int]:
    """The port of each voter, as the log has it."""
    topic = DescribeQuorumRequestTopicData("__cluster_metadata", [DescribeQuorumRequestPartitionData(0)])
    with Client(cluster.brokers[asked].address) as client:
        nodes = client.ask("DescribeQuorum", DescribeQuorumRequest([topic])).nodes
    return {node.node_id: at.port for node in nodes for at in node.listeners}


def test_a_voter_that_is_started_on_another_port_tells_the_leader(tmp_path: Path) -> None:
    """Over its controller listener: the log has the new one, and the others reach it there."""
    with LiveVoters(tmp_path, 2, QUICK) as cluster:
        cluster.add(2)
        node, port = cluster.brokers[2], free_port()
        assert node.stop() == 0
        node.override({"listeners": f"PLAINTEXT://{node.address},CONTROLLER://127.0.0.1:{port}"})
        node.start()
        until(lambda: controllers_at(cluster, 1).get(2) == port, "nobody is told")
        with Client(cluster.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)  # committed by both
