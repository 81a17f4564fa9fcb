"""Kafka's own command-line classes against three nodes: partitions are moved, the quorum is described, a
broker is taken out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.jvm import Jvm
from tests.compat.test_tools import Tools
from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.live.test_brokers import leaders, producer
from tests.live.test_controllers import QUICK
from tests.patience import PATIENCE_S, until

TOPIC, PARTITIONS = "spread", 6
REASSIGN = "reassign.ReassignPartitionsCommand"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCombined]:
    with LiveCombined(tmp_path_factory.mktemp("nodes"), 3, QUICK) as started:
        with Client(started.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        yield started


@pytest.fixture(scope="module")
def tools(jvm: Jvm, cluster: LiveCombined) -> Tools:
    return Tools(jvm, cluster.addresses[1])


def test_partitions_are_reassigned(tools: Tools, cluster: LiveCombined, tmp_path: Path) -> None:
    """kafka-reassign-partitions: proposed, carried out, verified; two replicas are refused in words."""
    topics, moves = tmp_path / "topics.json", tmp_path / "moves.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": TOPIC}]}))
    proposed = tools(
        REASSIGN, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1,2,3"
    )
    assert "Proposed partition reassignment configuration" in proposed

    def plan(*replicas: list[int]) -> None:
        places = [{"topic": TOPIC, "partition": at, "replicas": to} for at, to in enumerate(replicas)]
        moves.write_text(json.dumps({"version": 1, "partitions": places}))

    given = ("--reassignment-json-file", str(moves))
    plan([3], [3])
    assert f"Successfully started partition reassignments for {TOPIC}-0,{TOPIC}-1" in tools(
        REASSIGN, "--execute", *given
    )
    verified = tools(REASSIGN, "--verify", *given)
    assert re.findall(r"partition (\S+) is completed", verified) == [f"{TOPIC}-0", f"{TOPIC}-1"]
    until(lambda: [leaders(cluster.brokers[1])[at] for at in (0, 1)] == [3, 3], "they did not move")
    assert "No partition reassignments found" in tools(REASSIGN, "--list")
    plan([3, 2])
    refused = tools(REASSIGN, "--execute", *given, code=1)
    assert "A partition has one replica, whose broker leads it: name one" in refused


def test_the_quorum_is_described(tools: Tools, cluster: LiveCombined) -> None:
    """kafka-metadata-quorum names where each voter is."""
    asked = "MetadataQuorumCommand", "--bootstrap-server", cluster.addresses[1], "describe"
    status = tools.without_address(*asked, "--status")
    (voters,) = re.findall(r"CurrentVoters: +(.*)", status)
    told = {one["id"]: one["endpoints"] for one in json.loads(voters)}
    ids = cluster.brokers[1]._overrides["controller.quorum.voters"].split(",")
    assert told == {int(one[0]): [f"CONTROLLER://{one[2:]}"] for one in ids}
    replication = tools.without_address(*asked, "--replication")
    assert sorted(re.findall(r"^(\d)\s.*\s(Leader|Follower)", replication, re.MULTILINE)) == sorted(
        (node_id, "Leader" if int(node_id) == cluster.leader() else "Follower") for node_id in "123"
    )


def test_an_unclean_election_gives_up_a_lost_log(tools: Tools, cluster: LiveCombined, tmp_path: Path) -> None:
    """kafka-leader-election: refused while the log may be recovered, done where it is lost."""
    asked = "LeaderElectionCommand", "--election-type", "unclean", "--all-topic-partitions"
    assert "error" not in tools(*asked).lower()
    gone = next(node_id for node_id in cluster.brokers if node_id not in (2, cluster.leader()))
    led = [index for index, leader in leaders(cluster.brokers[2]).items() if leader == gone]
    sender = producer(cluster, retries=100)
    for index in led:
        sender.send(TOPIC, b"lost", partition=index).get(PATIENCE_S)
    sender.close()
    cluster.brokers[gone].kill()
    wal = next(Path(cluster.brokers[gone].folder).rglob("wal"))
    wal.rename(tmp_path / "away")
    waits = (cluster.brokers[cluster.leader()], "millrace_failover_waiting_brokers")
    until(lambda: waits[0].metrics()[waits[1]] == 1, "nobody waits for its log")
    told = tools(*asked)
    assert "Successfully completed leader election (UNCLEAN)" in told
    assert all(f"{TOPIC}-{index}" in told for index in led)
    until(lambda: not {gone, -1} & {*leaders(cluster.brokers[2]).values()}, "not led by others")
    (tmp_path / "away").rename(wal)
    cluster.brokers[gone] = cluster.brokers[gone].restart()


def test_a_broker_is_taken_out(tools: Tools, cluster: LiveCombined) -> None:
    """kafka-cluster: one that runs is not unregistered; one that has ended in order is."""
    leader = cluster.leader()
    gone = next(node_id for node_id in cluster.brokers if node_id not in (2, leader))
    tools("ClusterTool", "unregister", "--id", str(gone), code=1)
    assert cluster.brokers[gone].stop() == 0
    assert f"Broker {gone} is no longer registered" in tools("ClusterTool", "unregister", "--id", str(gone))
    listed = tools("ClusterTool", "list-endpoints", "--include-fenced-brokers")
    assert re.findall(r"^(\d) ", listed, re.MULTILINE) == [one for one in "123" if int(one) != gone]
    described = tools("TopicCommand", "--describe", "--topic", TOPIC)
    assert not re.search(rf"Leader: ({gone}|-1|none)\b", described)
