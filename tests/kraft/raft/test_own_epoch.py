"""A leader counts copies of records of earlier epochs only together with one of its own (Raft, 5.4.2)."""

from __future__ import annotations

from millrace.kraft.raft.messages import Fetch
from millrace.kraft.raft.roles import Leader
from tests.kraft.raft.test_strangers import led_by_one, step


def test_an_older_epoch_is_committed_with_the_leaders_own_alone() -> None:
    """A majority holds a record of before: another that lacks it could still be elected by those whose last
    epoch is no later, so that it is not committed. With the first of the leader's own both are."""
    cluster = led_by_one()
    leader, core = cluster.nodes[1], cluster.nodes[1].core
    committed = core.high_watermark
    core.propose("before", 1)
    cluster.settle(leader)
    assert isinstance(core.role, Leader)
    core.role.start = core.log.end  # its own epoch begins behind
    step(cluster, Fetch(2, 1, core.epoch, core.log.end, core.log.last_epoch))
    assert core.high_watermark == committed
    core.propose("own", 1)
    cluster.settle(leader)
    step(cluster, Fetch(2, 1, core.epoch, core.log.end, core.log.last_epoch))
    assert core.high_watermark == core.log.end == committed + 2
