"""What a core does on words of those who do not lead, or who lead another quorum: it goes on as it was."""

from __future__ import annotations

import pytest

from millrace.kraft.raft.log_view import Entry
from millrace.kraft.raft.messages import BeginEpoch, EndEpoch, Fetch, FetchReply
from millrace.kraft.raft.roles import Follower, Leader, has_caught_up
from tests.kraft.raft.cluster import Cluster

LONG = 60  # ticks: several elections


def led_by_one() -> Cluster:
    """Nodes 1 to 3; node 1 leads, and one record is committed everywhere."""
    cluster = Cluster((1, 2, 3))
    run(cluster, 30)
    assert isinstance(cluster.nodes[1].core.role, Leader)
    cluster.nodes[1].core.propose("a", 1)
    cluster.settle(cluster.nodes[1])
    run(cluster, 10)
    return cluster


def run(cluster: Cluster, ticks: int) -> None:
    for _ in range(ticks):
        cluster.tick([*cluster.nodes], 1)
        cluster.deliver()


def step(cluster: Cluster, message: BeginEpoch | EndEpoch | Fetch | FetchReply) -> None:
    node = cluster.nodes[message.target]
    node.core.step(message)
    cluster.settle(node)


def is_following(cluster: Cluster, node_id: int, leader: int) -> bool:
    core = cluster.nodes[node_id].core
    is_equal = core.log.end == cluster.nodes[leader].core.log.end
    return isinstance(core.role, Follower) and core.leader == leader and is_equal


def test_the_end_of_an_epoch_is_its_leaders_to_say() -> None:
    cluster = led_by_one()
    core = cluster.nodes[2].core
    step(cluster, EndEpoch(3, 2, core.epoch, (2, 1)))
    assert isinstance(core.role, Follower)
    assert core.leader == 1


def test_who_was_told_of_an_end_that_was_none_follows_again() -> None:
    """Somebody said so in the leader's name. Nobody elects who stands for it, and the leader goes on: it is
    followed as soon as its end would have been old news."""
    cluster = led_by_one()
    epoch = cluster.nodes[1].core.epoch
    step(cluster, EndEpoch(1, 2, epoch, (2, 3)))
    run(cluster, LONG)
    assert cluster.nodes[1].core.is_leader
    assert cluster.nodes[1].core.epoch == epoch
    cluster.nodes[1].core.propose("b", 1)
    cluster.settle(cluster.nodes[1])
    run(cluster, 10)
    assert is_following(cluster, 2, 1)


def test_nothing_that_is_committed_is_cut_for_a_leader_of_another_past() -> None:
    """Its log is longer, and has an epoch that ours has no record of between two that it has."""
    cluster = led_by_one()
    core = cluster.nodes[2].core
    end, epoch = core.log.end, core.log.last_epoch
    assert core.high_watermark == end
    answer = FetchReply(1, 2, core.epoch, 1, end, epoch, end, end + 50, diverging=(epoch - 1, end + 50))
    assert core.denies_committed(answer)
    step(cluster, answer)
    assert (core.log.end, core.high_watermark) == (end, end)
    run(cluster, 10)
    assert is_following(cluster, 2, 1)


def test_a_voter_that_has_forgotten_what_it_had_is_not_counted_for_it() -> None:
    """Its log directory was put back while the leader led: what it asks for is what it has."""
    cluster = Cluster((1, 2, 3, 4, 5))
    run(cluster, 60)
    leader = next(node for node in cluster.nodes.values() if node.core.is_leader)
    core, place = leader.core, leader.core.log.place
    one, another = [voter for voter in core.voters if voter != leader.node_id][:2]

    def fetch(voter: int, end: int) -> None:
        step(cluster, Fetch(voter, leader.node_id, core.epoch, end, core.epoch, place[0]))

    core.propose("a", 1)
    cluster.settle(leader)
    fetch(one, place[0] + 1)
    fetch(one, place[0])
    fetch(another, place[0] + 1)
    assert core.high_watermark == place[0]
    fetch(one, place[0] + 1)
    assert core.high_watermark == place[0] + 1


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_voter_whose_log_is_no_part_of_the_leaders_is_counted_for_nothing(is_lost: bool) -> None:
    """Its log directory was lost while the leader led, whose log begins behind a snapshot, or put back to one
    that ends otherwise: its fetch is refused, and it has nothing of what it had."""
    cluster = Cluster((1, 2, 3, 4, 5))
    run(cluster, 60)
    leader = next(node for node in cluster.nodes.values() if node.core.is_leader)
    core, (end, epoch) = leader.core, leader.core.log.place
    one, another = [voter for voter in core.voters if voter != leader.node_id][:2]

    def fetch(voter: int, offset: int, last_epoch: int) -> None:
        step(cluster, Fetch(voter, leader.node_id, epoch, offset, last_epoch, 0))

    if is_lost:
        core.log.on_snapshot(end, epoch)
        core.log.trim_start(end)
    core.propose("a", 1)
    cluster.settle(leader)
    fetch(one, end + 1, epoch)
    fetch(one, 0 if is_lost else end, 0)
    fetch(another, end + 1, epoch)
    assert core.high_watermark == end
    fetch(one, end + 1, epoch)
    assert core.high_watermark == end + 1


def test_nobody_has_caught_up_with_a_leader_that_has_committed_nothing_yet() -> None:
    """It knows of what was committed before it led what its snapshot held, or nothing."""
    cluster = led_by_one()
    core = cluster.nodes[2].core
    end, epoch = core.log.place
    assert has_caught_up(core.role)
    step(cluster, BeginEpoch(3, 2, epoch + 1))
    step(cluster, FetchReply(3, 2, epoch + 1, 3, end, epoch, end, end))
    assert not has_caught_up(core.role)
    for high_watermark in (end, end + 1):
        answer = FetchReply(3, 2, epoch + 1, 3, *core.log.place, end + 1, high_watermark)
        answer.entries = [Entry(end, 1, epoch + 1, b"", is_control=True)] * (core.log.end == end)
        step(cluster, answer)
        assert has_caught_up(core.role) == (high_watermark > end)


def test_who_was_given_a_snapshot_of_this_epoch_has_caught_up() -> None:
    cluster = led_by_one()
    core = cluster.nodes[2].core
    end, epoch = core.log.end + 5, core.epoch + 1
    step(cluster, BeginEpoch(3, 2, epoch))
    core.on_snapshot_fetched(end, epoch)
    for entries in ([], [Entry(end, 1, epoch, b"")]):
        step(cluster, FetchReply(3, 2, epoch, 3, end, epoch, end + len(entries), end, entries=entries))
        assert has_caught_up(core.role)
