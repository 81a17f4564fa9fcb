"""Voters whose log directories were put back to an older state: nobody who lacks what the bucket knows to be
committed is elected, and who has that gives nothing of it up."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

import pytest

from tests.live import LiveBroker, free_port
from tests.live.client import Client
from tests.live.cluster import CLUSTER, LiveCluster, LiveControllers, logged, offset_of
from tests.live.test_controllers import ready_page, set_default
from tests.live.voters import LiveVoters
from tests.patience import until

SETTINGS = {"s3.metadata.upload.interval.ms": "200"}
LACKS = "and the bucket knows metadata up to offset"
NOT_WAITED_FOR = "does not say what it knows of the metadata, and is not waited for: no answer within 3 s\\n"
DENIED = "is committed here: who leads knows another past"


def keep(node: LiveBroker, kept: Path) -> None:
    """Its log directory as it is; the node is stopped and started for that."""
    assert node.stop() == 0
    shutil.copytree(node.folder / "data", kept)
    node.start()


def put_back(node: LiveBroker, kept: Path) -> None:
    shutil.rmtree(node.folder / "data")
    shutil.copytree(kept, node.folder / "data")


def make(cluster: LiveCluster, name: str) -> None:
    with Client(cluster.addresses[0]) as client:
        client.create(name)


def is_in_bucket(cluster: LiveCluster, topic: str) -> bool:
    """Whether metadata that names it is."""
    pieces = cluster.quorum.bucket.glob("*/metadata/log/*")
    return any(topic.encode() in one.read_bytes() for one in pieces)


def holds(node: LiveBroker, topic: str) -> bool:
    """Whether the metadata log of this controller names it."""
    return any(topic.encode() in one.read_bytes() for one in (node.folder / "data").rglob("*.log"))


def put_two_back(folder: Path, cluster: LiveCluster) -> int:
    """No controller runs on return, and 2 and 3 lack a topic that is made; where the log of 1 ends."""
    quorum = cluster.quorum
    make(cluster, "early")
    for node_id in (2, 3):
        keep(quorum.nodes[node_id], folder / f"kept{node_id}")
    quorum.leader()
    make(cluster, "decided")
    end = quorum.wait_equal(quorum.nodes)
    until(lambda: is_in_bucket(cluster, "decided"), "no piece of metadata names it")
    for node in quorum.nodes.values():
        node.kill()
    for node_id in (2, 3):
        put_back(quorum.nodes[node_id], folder / f"kept{node_id}")
    return end


def test_two_of_three_voters_that_were_put_back_wait_for_the_third(tmp_path: Path) -> None:
    """They are a majority, and start without the one that has all: it leads when it comes, and nothing that
    was decided is gone."""
    with LiveCluster(tmp_path, controllers=3, brokers=1, overrides=SETTINGS) as cluster:
        quorum = cluster.quorum
        end = put_two_back(tmp_path, cluster)
        old = [quorum.nodes[2], quorum.nodes[3]]
        for node in old:
            node.begin()
        until(lambda: all(logged(node, LACKS) for node in old), "not said")
        time.sleep(3.0)  # in which they would have elected one of them
        assert {int(node.metrics()["millrace_quorum_leader"]) for node in old} <= {-1, 1}
        quorum.nodes[1].begin()
        for node in quorum.nodes.values():
            node.wait_ready()
        assert quorum.leader() == 1
        make(cluster, "later")
        assert quorum.wait_equal(quorum.nodes) > end
        with Client(cluster.addresses[0]) as client:
            assert client.topic_ids().keys() >= {"early", "decided", "later"}


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_newest_claim_tells_what_is_committed(tmp_path: Path, *, is_lost: bool) -> None:
    """A leader that has put nothing yet has said where the metadata ended as it claimed the log, and whoever
    ends in order as it released that; what was put before it is of an earlier epoch. Two voters are put back,
    or have lost their log directories."""
    seldom = {"s3.metadata.upload.interval.ms": "600000"}
    with LiveControllers(tmp_path, 3, seldom) as quorum:
        last = quorum.leader()
        old = [node_id for node_id in quorum.nodes if node_id != last]
        for node_id in old:
            keep(quorum.nodes[node_id], tmp_path / f"kept{node_id}")
        quorum.wait_equal(quorum.nodes)
        set_default(quorum, last, "100001")
        end = quorum.wait_equal(quorum.nodes)
        claims = tmp_path / "bucket" / CLUSTER / "owners" / "metadata"
        until(lambda: any(claims.glob("*")), "it has claimed nothing")
        assert quorum.nodes[last].stop() == 0
        for node_id in old:
            quorum.nodes[node_id].kill()
            put_back(quorum.nodes[node_id], tmp_path / f"kept{node_id}")
            if is_lost:
                shutil.rmtree(quorum.nodes[node_id].folder / "data" / "metadata")
            quorum.nodes[node_id].begin()
        for node_id in old:
            said = quorum.nodes[node_id].wait_ready().run_log()
            known = re.findall(f"{LACKS} (\\d+)", said)
            assert [int(offset) >= end for offset in known] == [True], said


def test_a_damaged_claim_does_not_hide_what_was_put(tmp_path: Path) -> None:
    """It says nothing of where the metadata log ended; the names of what was put do."""
    with LiveCluster(tmp_path, controllers=3, brokers=1, overrides=SETTINGS) as cluster:
        put_two_back(tmp_path, cluster)
        claims = sorted((cluster.quorum.bucket / CLUSTER / "owners" / "metadata").glob("*"))
        claims[-1].write_bytes(b"rotten")
        old = [cluster.quorum.nodes[2], cluster.quorum.nodes[3]]
        for node in old:
            node.begin()
        for node in old:
            node.wait_ready()
        assert all(logged(node, LACKS) for node in old)


def test_a_voter_gives_up_nothing_that_the_bucket_knows(tmp_path: Path) -> None:
    """Where those that were put back did not reach the bucket they have elected one of them: who has more
    takes nothing of theirs."""
    with LiveCluster(tmp_path, controllers=3, brokers=1, overrides=SETTINGS) as cluster:
        quorum = cluster.quorum
        put_two_back(tmp_path, cluster)
        away = f"0@s3://lake?region=us-east-1&endpoint=http://127.0.0.1:{free_port()}&pathStyle=true"
        away += "&accessKey=test&secretKey=secret"
        for node_id in (2, 3):
            quorum.nodes[node_id].override({"s3.data.buckets": away})
        quorum.start((2, 3))
        assert all(logged(quorum.nodes[node_id], NOT_WAITED_FOR) for node_id in (2, 3))
        quorum.leader()
        quorum.nodes[1].begin()
        until(lambda: logged(quorum.nodes[1], DENIED) or not holds(quorum.nodes[1], "decided"), "not said")
        assert holds(quorum.nodes[1], "decided")


def test_a_voter_that_has_caught_up_is_not_told_to_lack_anything(tmp_path: Path) -> None:
    """It was away while a topic was made, which the bucket knew as it started. Once it has that, and the
    others are gone, it waits for a majority and for nothing else."""
    with LiveCluster(tmp_path, controllers=3, brokers=1, overrides=SETTINGS) as cluster:
        quorum = cluster.quorum
        behind = next(one for one in quorum.nodes if one != quorum.leader())
        assert quorum.nodes[behind].stop() == 0
        make(cluster, "decided")
        until(lambda: is_in_bucket(cluster, "decided"), "no piece of metadata names it")
        quorum.start([behind])
        assert logged(quorum.nodes[behind], LACKS)
        quorum.wait_equal(quorum.nodes)
        for node_id, node in quorum.nodes.items():
            if node_id != behind:
                node.kill()
        until(lambda: ready_page(quorum.nodes[behind]) != "ready\n", "it has a leader still")
        assert "no controller leads" in ready_page(quorum.nodes[behind])


def test_a_voter_that_was_put_back_to_when_it_was_alone_follows_the_others(tmp_path: Path) -> None:
    """By its own log it is the only voter, of a cluster that has three by now: it elects nobody, and asks
    those that it knows of by its settings."""
    with LiveVoters(tmp_path, 3, SETTINGS) as cluster:
        nodes = cluster.brokers
        keep(nodes[1], tmp_path / "kept1")
        for node_id in (2, 3):
            until(lambda: len({offset_of(node) for node in nodes.values()}) == 1, "they do not follow")
            cluster.add(node_id)
        with Client(nodes[2].address) as client:
            client.create("decided")
        pieces = (tmp_path / "bucket").glob
        until(
            lambda: any(b"decided" in one.read_bytes() for one in pieces("*/metadata/log/*")),
            "no piece of metadata names it",
        )
        for node in nodes.values():
            node.kill()
        shutil.rmtree(cluster.metadata_dir(1))
        shutil.copytree(tmp_path / "kept1" / "metadata", cluster.metadata_dir(1))
        nodes[1].begin()
        until(lambda: logged(nodes[1], LACKS) or not nodes[1].is_running(), "not said")
        assert nodes[1].is_running()
        for node_id in (2, 3):
            nodes[node_id].begin()
        for node in nodes.values():
            node.wait_ready()
        assert all(holds(node, "decided") for node in nodes.values())
