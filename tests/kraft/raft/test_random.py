"""The core under chance: messages lost, late and twice, nodes crashing and cut off; what must hold is checked
at each step."""

from __future__ import annotations

import random

import pytest

from millrace.kraft.raft.messages import FetchReply, Message
from millrace.kraft.raft.ready import QuorumState
from millrace.kraft.raft.roles import Leader
from tests.kraft.raft.cluster import Cluster, Node

STEPS = 1_500


class Checker:
    """One leader an epoch; what was committed anywhere stays what it was, everywhere; high watermarks never
    fall."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self.committed: dict[int, str] = {}
        self.watermarks: dict[int, int] = {}

    def check(self, cluster: Cluster) -> None:
        for node in cluster.nodes.values():
            if node.raft is None:
                self.watermarks.pop(node.node_id, None)
                continue
            role = node.core.role
            if isinstance(role, Leader):
                assert self.leaders.setdefault(role.epoch, node.node_id) == node.node_id, role
            watermark = node.core.high_watermark
            assert watermark >= self.watermarks.get(node.node_id, 0)
            self.watermarks[node.node_id] = watermark
            for entry in node.entries:
                if entry.end <= node.committed:
                    text = f"{entry.payload}@{entry.epoch}"
                    assert self.committed.setdefault(entry.base, text) == text, (node.node_id, entry)


class Storm:
    def __init__(self, seed: int, voters: int) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster(tuple(range(1, voters + 1)), observers=(9,))
        self.checker = Checker()
        self.proposed = 0

    def step(self) -> None:
        cluster, chance = self.cluster, self.random
        node = chance.choice(list(cluster.nodes.values()))
        draw = chance.random()
        if draw < 0.45:
            cluster.tick([n.node_id for n in cluster.nodes.values() if chance.random() < 0.9], 1)
        elif draw < 0.80 and cluster.queue:
            self.deliver()
        elif draw < 0.90 and node.raft is not None and isinstance(node.core.role, Leader):
            self.proposed += 1
            node.core.propose(f"p{self.proposed}", 1)
            cluster.settle(node)
        elif draw < 0.93:
            cluster.cut = chance.sample(list(cluster.nodes), chance.randrange(len(cluster.nodes)))
        elif draw < 0.95:
            cluster.cut = []
        elif draw < 0.97:
            self.crash_or_restart(node.node_id)
        elif node.raft is not None and node.committed > node.start and chance.random() < 0.3:
            self.compact(node.node_id)
        self.checker.check(cluster)

    def deliver(self) -> None:
        """Some of what is queued, in any order; a message may be lost, or stay to come again."""
        cluster, chance = self.cluster, self.random
        for _ in range(chance.randrange(1, 6)):
            if not cluster.queue:
                return
            message = cluster.queue.pop(chance.randrange(min(8, len(cluster.queue))))
            if chance.random() < 0.1:
                continue
            if chance.random() < 0.05:
                cluster.queue.append(message)
            self.hand_over(message)

    def hand_over(self, message: Message) -> None:
        cluster = self.cluster
        message = cluster.addressed(message)
        target = cluster.nodes[message.target]
        is_cut = message.source in cluster.cut or message.target in cluster.cut
        if target.raft is not None and not is_cut:
            target.core.step(message)
            cluster.settle(target)

    def crash_or_restart(self, node_id: int) -> None:
        node = self.cluster.nodes[node_id]
        if node.raft is None:
            node.boot()
            self.cluster.settle(node)
        else:
            node.raft = None

    def compact(self, node_id: int) -> None:
        node = self.cluster.nodes[node_id]
        ends = [entry for entry in node.entries if entry.end <= node.committed]
        if ends:
            self.cluster.compact(node, ends[-1].end, ends[-1].epoch)

    def calm_round(self) -> None:
        """A tick for everybody, and all that comes of it."""
        self.cluster.tick(list(self.cluster.nodes), 1)
        self.cluster.deliver()

    def heal(self) -> None:
        """After the storm everybody is up and hears: a record must be committed everywhere."""
        cluster = self.cluster
        cluster.cut = []
        for node in cluster.nodes.values():
            if node.raft is None:
                node.boot()
                cluster.settle(node)
        for round_number in range(300):
            self.calm_round()
            self.checker.check(cluster)
            if round_number == 200:
                (leader,) = [n for n in cluster.nodes.values() if isinstance(n.core.role, Leader)]
                leader.core.propose("last", 1)
                cluster.settle(leader)
        ends = {node.committed for node in cluster.nodes.values()}
        assert ends == {max(node.core.log.end for node in cluster.nodes.values())}, ends


@pytest.mark.parametrize("seed", range(24))
def test_what_must_hold_holds_in_a_storm(seed: int) -> None:
    """No two leaders of an epoch, no committed record lost or changed; and when the storm is over, there is
    progress."""
    storm = Storm(seed, voters=3 if seed % 2 else 5)
    for _ in range(STEPS):
        storm.step()
    storm.heal()


@pytest.mark.parametrize("seed", [201, 285])
def test_answers_that_come_late_cut_nothing(seed: int) -> None:
    """Seeds that once lost committed records: a late `diverging` cut a good log; a cut log was taken for the
    leader's."""
    storm = Storm(seed, voters=3)
    for _ in range(4_000):
        storm.step()
    storm.heal()


def test_the_storm_reaches_what_it_is_about() -> None:
    """The storms together see several leaders, commits, truncations and snapshots installed: else they would
    prove nothing."""
    leaders = commits = truncations = installs = 0
    for seed in range(20):
        storm = Storm(seed, voters=3 if seed % 2 else 5)
        for _ in range(STEPS):
            storm.step()
        leaders += len(storm.checker.leaders)
        commits += len(storm.checker.committed)
        truncations += sum("truncates" in line for line in storm.cluster.out)
        installs += sum("installs" in line for line in storm.cluster.out)
    assert leaders > 20
    assert commits > 100
    assert truncations > 0
    assert installs > 0


class ToldStorm(Storm):
    """Each is told a list of its own, which has it, and another one at some of its starts."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 4)
        self.denied_count = 0
        self.cluster.queue.clear()
        for node in self.cluster.nodes.values():
            node.state, node.entries, node.committed = QuorumState(), [], 0
            self.tell(node)
            node.boot()
            self.cluster.settle(node)

    def tell(self, node: Node) -> None:
        if node.node_id != 9:
            others = [one for one in range(1, 5) if one != node.node_id]
            told = self.random.sample(others, self.random.randrange(len(others) + 1))
            node.voters = tuple(sorted([node.node_id, *told]))

    def crash_or_restart(self, node_id: int) -> None:
        node = self.cluster.nodes[node_id]
        if node.raft is None and self.random.random() < 0.5:
            self.tell(node)
        super().crash_or_restart(node_id)

    def hand_over(self, message: Message) -> None:
        """As far as a peer understands it: epochs of a log only rise (kraft/peers/wire.py)."""
        entries = message.entries if isinstance(message, FetchReply) else []
        epochs = [message.last_epoch if isinstance(message, FetchReply) else 0]
        epochs += [entry.epoch for entry in entries]
        if epochs == sorted(epochs):
            node = self.cluster.nodes.get(message.target)
            if isinstance(message, FetchReply) and node is not None and node.raft is not None:
                self.denied_count += node.core.denies_committed(message)
            super().hand_over(message)


def test_who_is_told_another_list_cuts_nothing_that_is_committed() -> None:
    """Two majorities that do not meet may both decide. Where their logs meet, a node takes nothing of the
    other."""
    denied_count = 0
    for seed in range(24):
        storm = ToldStorm(seed)
        storm.checker.check = lambda cluster: None  # type: ignore[method-assign]
        for _ in range(STEPS):
            storm.step()
        denied_count += storm.denied_count
    assert denied_count
