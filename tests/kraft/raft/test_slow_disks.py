"""The core over disks that take their time: what it gave out is persisted later, while messages and ticks go
on.

Each node's disk does one thing at a time, in the order in which it was asked; between two of them anything
may happen: messages come, leaders fall, logs are cut, processes are killed with writes under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from millrace.kraft.config import RaftSettings
from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.log_view import Entry, LogView
from millrace.kraft.raft.messages import FetchReply
from millrace.kraft.raft.ready import QuorumState, Ready
from tests.kraft.raft.cluster import SETTINGS, Cluster, Node
from tests.kraft.raft.test_random import Storm

STEPS = 1_500


class SlowCluster(Cluster):
    """A Ready becomes operations on the node's disk; `work` does the next one."""

    def __init__(self, voters: tuple[int, ...], observers: tuple[int, ...] = ()) -> None:
        self.disks: dict[int, deque[Callable[[], None]]] = {
            node_id: deque() for node_id in (*voters, *observers)
        }
        super().__init__(voters, observers)

    def settle(self, node: Node) -> None:
        disk = self.disks[node.node_id]
        while True:
            ready = node.core.ready()
            if ready.state is not None:
                disk.append(lambda state=ready.state: setattr(node, "state", state))  # type: ignore[misc]
            if ready.truncate_to is not None:
                disk.append(lambda cut=ready.truncate_to: self.cut_log(node, cut))  # type: ignore[misc]
            if ready.snapshot is not None:
                disk.append(lambda found=ready.snapshot: self.install_late(node, found))  # type: ignore[misc]
            for entry in ready.entries:
                disk.append(lambda entry=entry: self.append(node, entry))  # type: ignore[misc]
            if ready.messages:
                disk.append(lambda ready=ready: self.send(ready))  # type: ignore[misc]
            if ready.snapshot is not None or not (ready.entries or ready.messages or ready.state):
                break
        self.see_commits(node)

    def work(self, node: Node) -> None:
        disk = self.disks[node.node_id]
        if disk and node.raft is not None:
            disk.popleft()()
            self.settle(node)

    def finish(self) -> None:
        for node in self.nodes.values():
            while self.disks[node.node_id] and node.raft is not None:
                self.work(node)

    def cut_log(self, node: Node, cut: int) -> None:
        self.out.append(f"{node.node_id} truncates to {cut}")
        node.entries = [entry for entry in node.entries if entry.end <= cut]

    def append(self, node: Node, entry: Entry) -> None:
        expected = (
            node.entries[-1].end
            if node.entries
            else max(node.start, entry.base if not node.start else node.start)
        )
        assert entry.base == expected, (node.node_id, entry, expected)
        node.entries.append(entry)
        node.core.on_persisted([entry])

    def install_late(self, node: Node, snapshot: tuple[int, int]) -> None:
        if not node.core.wants_snapshot(*snapshot):
            return
        node.entries = []
        self.install(node, snapshot)

    def send(self, ready: Ready) -> None:
        for message in ready.messages:
            if isinstance(message, FetchReply) and message.end > message.offset:
                message = self.fill(message)
                message.end = message.entries[-1].end if message.entries else message.offset
            self.queue.append(message)

    def see_commits(self, node: Node) -> None:
        durable = node.entries[-1].end if node.entries else node.start
        commit_end = node.core.commit_end
        assert commit_end <= durable, (
            f"node {node.node_id}: {commit_end} is called committed, {durable} is durable"
        )
        if commit_end > node.committed:
            node.committed = commit_end
            self.out.append(f"{node.node_id} commits to {commit_end}")


class SlowStorm(Storm):
    def __init__(self, seed: int, voters: int) -> None:
        super().__init__(seed, voters)
        self.speed = 0.35 + 0.1 * (seed % 4)
        self.cluster: SlowCluster = SlowCluster(tuple(range(1, voters + 1)), observers=(9,))

    def step(self) -> None:
        for node in self.cluster.nodes.values():
            while self.random.random() < self.speed:
                self.cluster.work(node)
            if node.raft is not None and node.core.is_leader and self.random.random() < 0.1:
                self.proposed += 1
                node.core.propose(f"p{self.proposed}", 1)
                self.cluster.settle(node)
        super().step()

    def crash_or_restart(self, node_id: int) -> None:
        self.cluster.disks[node_id].clear()  # what was being written is gone
        super().crash_or_restart(node_id)

    def compact(self, node_id: int) -> None:
        if not self.cluster.disks[node_id]:
            super().compact(node_id)

    def calm_round(self) -> None:
        """As the storm's, until every disk has written what it was given."""
        cluster = self.cluster
        cluster.finish()
        cluster.tick(list(cluster.nodes), 1)
        cluster.finish()
        while cluster.queue or any(cluster.disks.values()):
            cluster.deliver()
            cluster.finish()


@pytest.mark.parametrize("seed", range(16))
def test_what_must_hold_holds_over_slow_disks(seed: int) -> None:
    """Nothing counts as committed that is not durable, nothing committed is lost; and when the storm is over,
    there is progress."""
    storm = SlowStorm(seed, voters=3 if seed % 2 else 5)
    for _ in range(STEPS):
        storm.step()
    storm.heal()


def test_the_storms_reach_what_they_are_about() -> None:
    """They see commits, logs that are cut and snapshots that are installed."""
    commits = truncations = installs = 0
    for seed in range(24):
        storm = SlowStorm(seed, voters=3)
        for _ in range(STEPS):
            storm.step()
        commits += len(storm.checker.committed)
        truncations += sum("truncates" in line for line in storm.cluster.out)
        installs += sum("installs" in line for line in storm.cluster.out)
    assert commits > 200, commits
    assert truncations > 3, truncations
    assert installs > 3, installs


def follower(end: int = 1) -> Raft:
    """Of node 2 in epoch 3, with entries that are being written: [0, 1) is durable."""
    log = LogView()
    log.append(Entry(0, 1, 1))
    log.on_persisted(1)
    raft = Raft(RaftSettings(1, (1, 2, 3), **SETTINGS), QuorumState(3, 2, -1), log, lambda bound: 0)  # type: ignore[arg-type]
    raft.start()
    raft.ready()
    raft.step(FetchReply(2, 1, 3, 2, 0 + end, 1, 4, 1, entries=(Entry(1, 2, 3), Entry(3, 1, 3))))
    return raft


def test_what_was_cut_while_it_was_written_is_not_durable() -> None:
    """The disk's word for entries that a new leader has replaced says nothing of those that took their
    place."""
    raft = follower()
    given = raft.ready().entries
    assert [entry.base for entry in given] == [1, 3]
    raft.step(FetchReply(3, 1, 5, 3))  # a new leader; it is asked from 4@3 on, and has something else there
    raft.step(FetchReply(3, 1, 5, 3, 4, 3, diverging=(3, 3)))
    raft.step(FetchReply(3, 1, 5, 3, 3, 3, 4, 4, entries=(Entry(3, 1, 5),)))
    raft.on_persisted(given)
    assert (raft.log.stable_end, raft.log.end, raft.commit_end) == (3, 4, 3)
    ready = raft.ready()
    assert ready.truncate_to == 3
    raft.on_persisted(ready.entries)
    assert raft.commit_end == 4


def test_a_cut_that_comes_while_a_snapshot_takes_the_logs_place_is_no_cut() -> None:
    """The leader had answered the same fetch before, and said where the logs part; that answer comes late."""
    raft = follower()
    raft.on_persisted(raft.ready().entries)
    raft.step(FetchReply(2, 1, 3, 2, 4, 3, snapshot=(9, 3)))
    assert raft.ready().snapshot == (9, 3)
    assert raft.wants_snapshot(9, 3)
    raft.step(FetchReply(2, 1, 3, 2, 4, 3, diverging=(1, 1)))
    raft.on_snapshot_fetched(9, 3)
    ready = raft.ready()
    assert (ready.truncate_to, raft.log.start, raft.log.end) == (None, 9, 9)
