"""The core under chance while voters come and go, and disks are lost: what must hold with one set of voters
holds with all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.quorum import majority
from millrace.kraft.raft.ready import QuorumState
from millrace.kraft.raft.roles import Leader
from millrace.kraft.raft.voters import DYNAMIC, VoterSet
from tests.kraft.raft.cluster import Cluster, Node
from tests.kraft.raft.test_random import Storm

STEPS = 2_500
NODES = 5
VOTERS_MIN, VOTERS_MAX = 1, 5


class ChangingStorm(Storm):
    """A disk is lost only where a majority of whoever anybody holds for the voters is left."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, voters=3)
        first = 1 + seed % 3
        others = tuple(range(first + 1, NODES + 1))
        self.cluster = Cluster(tuple(range(1, first + 1)), others, is_dynamic=True)
        for node in self.cluster.nodes.values():  # any of them may be gone when somebody asks
            node.bootstrap = tuple(-one for one in self.cluster.nodes if one != node.node_id)
            node.chance = self.random.randrange
            node.boot()
            self.cluster.settle(node)
        self.changes = self.lost_disks = 0

    def step(self) -> None:
        draw = self.random.random()
        if draw < 0.06:
            self.change()
        elif draw < 0.07:
            self.lose_disk(self.random.choice(list(self.cluster.nodes.values())))
        super().step()
        for node in self.cluster.nodes.values():
            if node.raft is not None:
                sets = [known for _, known in node.core.log.voters.changes]
                assert all(one.is_next_to(other) for one, other in pairwise(sets)), sets

    def change(self) -> None:
        """What a leader is asked now and then: who lost its disk goes first."""
        for node in self.cluster.nodes.values():
            if node.raft is None or not isinstance(node.core.role, Leader):
                continue
            known = node.core.voter_set
            gone = [one.node_id for one in known.voters if not self.is_there(one.node_id, known)]
            watermark = node.core.high_watermark
            near = {key for key, seen in node.core.role.observers.items() if seen.end >= watermark - 3}
            new = [
                other.node_id
                for other in self.cluster.nodes.values()
                if other.node_id not in known.ids and (other.node_id, other.voter.directory_id) in near
            ]
            if gone:
                self.ask(node, "remove", gone[0])
            elif new and len(known.ids) < VOTERS_MAX and self.random.random() < 0.6:
                self.ask(node, "add", self.random.choice(new))
            elif len(known.ids) > VOTERS_MIN:
                self.ask(node, "remove", self.random.choice(known.ids))

    def ask(self, node: Node, verb: str, node_id: int) -> None:
        self.changes += node.core.may_change_voters
        self.cluster.change(node.node_id, verb, node_id)

    def is_there(self, node_id: int, known: VoterSet) -> bool:
        return known.directory_of(node_id) == self.cluster.nodes[node_id].voter.directory_id

    def lose_disk(self, node: Node) -> None:
        for other in self.cluster.nodes.values():
            for known in sets_of(other):
                left = [
                    one.node_id
                    for one in known.voters
                    if one.node_id != node.node_id and self.is_there(one.node_id, known)
                ]
                if known.voters and len(left) < majority(len(known.voters)):
                    return
        self.lost_disks += 1
        fresh = replace(
            node,
            state=QuorumState(),
            entries=[],
            start=0,
            snapshot=None,
            raft=None,
            committed=0,
            disk_count=node.disk_count + 1,
            snapshot_voters=None,
        )
        self.cluster.nodes[node.node_id] = fresh
        self.checker.watermarks.pop(node.node_id, None)
        fresh.boot()
        self.cluster.settle(fresh)


def sets_of(node: Node) -> list[VoterSet]:
    """All that may be in force there, now or after it is cut back or restarted."""
    found = [node.snapshot_voters] if node.snapshot_voters is not None else []
    for entry in node.entries:
        if entry.change is not None:
            found.append(entry.change.on(found[-1] if found else VoterSet((), DYNAMIC)))
    return found


@pytest.mark.parametrize("seed", range(24))
def test_what_must_hold_holds_while_voters_change(seed: int) -> None:
    """No two leaders of an epoch, no committed record lost or changed, sets that follow one another differ by
    one; and when the storm is over, there is progress."""
    storm = ChangingStorm(seed)
    for _ in range(STEPS):
        storm.step()
    storm.heal()


def test_the_storm_reaches_what_it_is_about() -> None:
    """Voters came and went, changes were cut off, and disks were lost."""
    changes = lost = truncations = installs = 0
    for seed in range(10):
        storm = ChangingStorm(seed)
        for _ in range(STEPS):
            storm.step()
        changes, lost = changes + storm.changes, lost + storm.lost_disks
        truncations += sum("truncates" in line for line in storm.cluster.out)
        installs += sum("installs" in line for line in storm.cluster.out)
    assert changes > 40
    assert lost > 5
    assert truncations > 0
    assert installs > 0


BUGS: dict[str, tuple[object, str, object]] = {
    "two changes at once": (Raft, "may_change_voters", property(lambda raft: raft.is_leader)),
    "any directory votes": (Raft, "_is_meant", lambda raft, target_directory: True),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within some storms: else they would prove nothing."""
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises(AssertionError):
        storms(60)


def storms(count: int) -> None:
    for seed in range(count):
        storm = ChangingStorm(seed)
        for _ in range(STEPS):
            storm.step()
