"""To whom a voter gives its vote: what no dialogue of nodes that keep to the rules comes to ask."""

from __future__ import annotations

from millrace.kraft.raft.messages import Vote, VoteReply
from tests.kraft.raft.cluster import Cluster
from tests.kraft.raft.test_strangers import led_by_one

FIRST_DISK, SECOND_DISK = b"1" * 16, b"2" * 16


def is_granted(cluster: Cluster, vote: Vote) -> bool:
    """By whom it is asked of."""
    node = cluster.nodes[vote.target]
    node.core.step(vote)
    cluster.settle(node)
    answers = [one for one in cluster.queue if isinstance(one, VoteReply) and one.source == vote.target]
    cluster.queue.clear()
    (answer,) = answers
    return answer.is_granted


def test_a_vote_is_for_a_disk_and_not_for_its_id() -> None:
    """Who got it may have lost its disk since, and with it what it led: on the next one it is another, and
    with both votes there would be two leaders in one epoch."""
    cluster = led_by_one()
    core = cluster.nodes[3].core
    epoch, log = core.epoch + 1, (core.log.last_epoch, core.log.end)
    assert is_granted(cluster, Vote(2, 3, epoch, *log, directory_id=FIRST_DISK))
    assert not is_granted(cluster, Vote(2, 3, epoch, *log, directory_id=SECOND_DISK))
    assert is_granted(cluster, Vote(2, 3, epoch, *log, directory_id=FIRST_DISK))


def test_who_knows_that_metadata_is_somewhere_elects_nobody_without_it() -> None:
    """It is empty as who asks is, which nobody has told of the bucket."""
    cluster = Cluster((1, 2, 3))
    core = cluster.nodes[2].core
    core.require(1, 3)
    assert not is_granted(cluster, Vote(3, 2, 1, 0, 0))
    assert not is_granted(cluster, Vote(3, 2, 1, 1, 2))
    assert is_granted(cluster, Vote(1, 2, 1, 1, 3))
