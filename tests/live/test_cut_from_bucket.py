"""One node of several does not reach the bucket, and the others do: what it would do is done by another.

Each node has a way of its own to the bucket, a link; one that is cut leads to itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.client import Client
from tests.live.cluster import LiveCombined, logged
from tests.live.test_brokers import PARTITIONS, TOPIC, leaders
from tests.live.test_controllers import QUICK
from tests.live.test_failover import check_all, send, values
from tests.patience import until

NODES = 3


class Linked(LiveCombined):
    """Logs are objects in a folder that all reach."""

    def __init__(self, folder: Path) -> None:
        log = f"0@file://{folder}/logs/?kind=object"
        super().__init__(folder, NODES, {**QUICK, "s3.wal.path": log})
        self._folder = folder
        (folder / "bucket").mkdir()
        for node_id, node in self.brokers.items():
            self.join(node_id)
            node._overrides["s3.data.buckets"] = f"0@file://{self._way(node_id)}"

    def _way(self, node_id: int) -> Path:
        return self._folder / f"way{node_id}"

    def cut(self, node_id: int) -> None:
        self._way(node_id).unlink()
        self._way(node_id).symlink_to(self._way(node_id))

    def join(self, node_id: int) -> None:
        self._way(node_id).unlink(missing_ok=True)
        self._way(node_id).symlink_to(self._folder / "bucket")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Linked]:
    with Linked(tmp_path) as started:
        with Client(started.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        send(started, values(0, 120))
        yield started


def test_a_leader_that_is_cut_off_gives_the_leadership_to_another(cluster: Linked) -> None:
    """It leads, and nobody can write to what is opened, for its opening is not in the bucket."""
    cut = cluster.leader()
    cluster.cut(cut)
    with Client(cluster.addresses[0]) as client:
        client.create("later", NODES)
    until(lambda: cluster.leader() != cut, "it goes on leading")
    assert logged(cluster.brokers[cut], f"controller {cut} gives the leadership to another")
    with Client(cluster.addresses[cluster.leader() - 1]) as client:
        led = leaders(cluster.brokers[cluster.leader()], "later")
        (index,) = [index for index, leader in led.items() if leader == cluster.leader()]
        client.produce("later", [b"taken"], index)
    cluster.join(cut)
    check_all(cluster, values(0, 120))


def test_who_is_cut_off_leaves_a_dead_ones_log_to_another(cluster: Linked) -> None:
    """The first that is asked is the lowest; it is not the leader here."""
    if cluster.leader() == 1:
        cluster.brokers[1].restart()
    until(lambda: cluster.leader() != 1, "the first one leads again")
    leader = cluster.leader()
    (victim,) = {2, 3} - {leader}
    cluster.cut(1)
    gone = cluster.brokers.pop(victim)
    gone.kill()
    witness = cluster.brokers[leader]
    until(lambda: not {victim, -1} & {*leaders(witness).values()}, "its partitions have no leader")
    assert logged(cluster.brokers[1], f"the write-ahead log of broker {victim}: ")
    recovered = f"the write-ahead log of broker {victim} is recovered"
    until(lambda: logged(witness, recovered), "another than the leader recovered it")
    cluster.brokers[victim] = gone.restart()
    cluster.join(1)
    send(cluster, values(120, 120))
    check_all(cluster, values(0, 240))
