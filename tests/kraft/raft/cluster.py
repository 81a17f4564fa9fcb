"""A cluster of raft cores on one table: their durable state, the messages between them, and what transcripts
print of it.

Persisting is immediate. A crash forgets what was not given as Ready, which is nothing but the role; a restart
begins from the durable state and log. Chance is fixed: node n waits n - 1 ticks longer than the least.

A dynamic cluster is at kraft.version 1: its voters were formatted, its observers are told where to ask.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from millrace.kraft.config import RaftSettings
from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.log_view import Entry, LogView
from millrace.kraft.raft.messages import Fetch, FetchReply, Message, Reply
from millrace.kraft.raft.ready import LeaderChange, QuorumState
from millrace.kraft.raft.voters import DYNAMIC, Voter, VoterHistory, VotersChange, VoterSet

SETTINGS: dict[str, Any] = {
    "election_ticks": 10,
    "fetch_ticks": 20,
    "backoff_ticks_max": 10,
    "retry_ticks": 5,
    "park_ticks": 4,
}


@dataclass
class Node:
    node_id: int
    voters: tuple[int, ...]
    state: QuorumState = field(default_factory=QuorumState)
    entries: list[Entry] = field(default_factory=list)
    start: int = 0
    snapshot: tuple[int, int] | None = None
    raft: Raft | None = None
    committed: int = 0
    disk_count: int = 1
    snapshot_voters: VoterSet | None = None
    bootstrap: tuple[int, ...] = ()  # negative ids of nodes
    chance: Callable[[int], int] | None = None

    @property
    def voter(self) -> Voter:
        return Voter(self.node_id, bytes([self.node_id, self.disk_count]) * 8, (), (0, 1))

    def boot(self) -> None:
        ids: dict[str, Any] = {"directory_id": self.voter.directory_id, "bootstrap": self.bootstrap}
        settings = RaftSettings(self.node_id, self.voters, **SETTINGS, **ids)
        end = self.entries[-1].end if self.entries else self.start
        epochs: list[tuple[int, int]] = []
        for entry in self.entries:
            if not epochs or epochs[-1][0] < entry.epoch:
                epochs.append((entry.epoch, entry.base))
        history = VoterHistory()
        history.restart_at(self.start, self.snapshot_voters)
        for entry in self.entries:
            if entry.change is not None:
                history.append(entry.base, entry.change)
        view = LogView(self.start, end, end, epochs, self.snapshot, voters=history)
        chance = self.chance or (lambda bound: (self.node_id - 1) % bound)
        self.raft = Raft(settings, self.state, view, chance)
        self.raft.start()

    @property
    def core(self) -> Raft:
        assert self.raft is not None, f"node {self.node_id} is down"
        return self.raft

    def log_text(self) -> str:
        return " ".join(f"{e.base}:{payload_text(e.payload)}@{e.epoch}" for e in self.entries) or "-"


def payload_text(payload: Any) -> str:
    if isinstance(payload, VotersChange):
        return f"voters({','.join(str(voter.node_id) for voter in payload.voters or ())})"
    return f"leader{payload.leader}" if isinstance(payload, LeaderChange) else str(payload)


def is_idle(message: Message) -> bool:
    """A fetch, or the answer to one that brings nothing."""
    if isinstance(message, FetchReply):
        is_news = message.diverging or message.snapshot or message.leader != message.source
        return not is_news and message.end == message.offset
    return isinstance(message, Fetch)


class Cluster:
    def __init__(
        self, voters: tuple[int, ...], observers: tuple[int, ...] = (), *, is_dynamic: bool = False
    ) -> None:
        ids = (*voters, *observers)
        self.nodes = {node_id: Node(node_id, () if is_dynamic else voters) for node_id in ids}
        if is_dynamic:
            first = VoterSet(tuple(self.nodes[node_id].voter for node_id in voters), DYNAMIC)
            for node in self.nodes.values():
                node.bootstrap = tuple(-one for one in voters if one != node.node_id)
                node.snapshot_voters = first if node.node_id in voters else None
        self.snapshot_voters: dict[tuple[int, int], VoterSet | None] = {}
        self.queue: list[Message] = []
        self.cut: list[int] = []
        self.out: list[str] = []
        for node in self.nodes.values():
            node.boot()
            self.settle(node)

    def settle(self, node: Node) -> None:
        """Carries out every Ready of a node."""
        while True:
            ready = node.core.ready()
            if ready.state is not None:
                node.state = ready.state
            if ready.truncate_to is not None:
                cut = ready.truncate_to
                self.out.append(f"{node.node_id} truncates to {cut}")
                node.entries = [entry for entry in node.entries if entry.end <= cut]
            if ready.snapshot is not None:
                self.install(node, ready.snapshot)
                continue
            if ready.entries:
                node.entries += ready.entries
                node.core.on_persisted(ready.entries)
            self.queue += map(self.fill, ready.messages)
            if ready.commit_end > node.committed:
                node.committed = ready.commit_end
                self.out.append(f"{node.node_id} commits to {node.committed}")
            if not (ready.entries or ready.messages or ready.state or ready.truncate_to is not None):
                return

    def install(self, node: Node, snapshot: tuple[int, int]) -> None:
        self.out.append(f"{node.node_id} installs snapshot {snapshot[0]}@{snapshot[1]}")
        node.entries, node.start, node.snapshot = [], snapshot[0], snapshot
        node.snapshot_voters = self.snapshot_voters[snapshot]
        node.core.on_snapshot_fetched(*snapshot, node.snapshot_voters)

    def compact(self, node: Node, end: int, epoch: int) -> None:
        """A snapshot takes the place of the log below `end`."""
        known = node.core.log.voters.at(end)
        node.entries = [entry for entry in node.entries if entry.base >= end]
        node.start, node.snapshot = end, (end, epoch)
        node.snapshot_voters = known if known.kraft_version == DYNAMIC else None
        self.snapshot_voters[node.snapshot] = node.snapshot_voters
        node.core.log.on_snapshot(end, epoch)
        node.core.log.trim_start(end)

    def fill(self, message: Message) -> Message:
        """What a driver does for the core when it sends: puts the entries into a reply."""
        if isinstance(message, FetchReply) and message.end > message.offset:
            entries = self.nodes[message.source].entries
            message.entries = [e for e in entries if message.offset <= e.base and e.end <= message.end]
        return message

    def deliver(self, only: str | None = None, is_brief: bool = False) -> None:
        """Delivers what is queued and what that brings about, in order; only those named, once, when a pair
        is given."""
        rounds = 0
        while self.queue:
            rounds += 1
            assert rounds < 500, "the cluster talks for ever"
            batch, self.queue = self.queue, []
            for message in map(self.addressed, batch):
                pair = f"{message.source}->{message.target}"
                if only is not None and pair != only:
                    self.queue.append(message)
                    continue
                target = self.nodes.get(message.target)
                is_lost = message.source in self.cut or message.target in self.cut
                is_shown = not is_brief or not is_idle(message)
                if target is None or target.raft is None or is_lost:
                    self.out += [f"{message!r} (lost)"] * is_shown
                    continue
                self.out += [repr(message)] * is_shown
                target.core.step(message)
                self.settle(target)
            if only is not None:
                return

    def addressed(self, message: Message) -> Message:
        """What goes to a bootstrap server is taken by whoever is there; its answer is one of that server's,
        whoever that is."""
        if message.target < 0:
            message = copy(message)
            message.request_id, message.target = message.target, -message.target
        elif isinstance(message, Reply) and message.request_id < 0:
            message = copy(message)
            message.source, message.request_id = message.request_id, 0
        return message

    def tick(self, node_ids: list[int], count: int) -> None:
        for _ in range(count):
            for node_id in node_ids:
                node = self.nodes[node_id]
                if node.raft is not None:
                    node.core.tick()
                    self.settle(node)

    def change(self, leader: int, verb: str, node_id: int) -> None:
        """Has the leader change who votes, as its node is now."""
        core, voter = self.nodes[leader].core, self.nodes[node_id].voter
        if not core.may_change_voters:
            self.out.append("not now")
            return
        if verb == "upgrade":
            members = tuple(self.nodes[one].voter for one in core.voters)
            core.change_voters(VotersChange(DYNAMIC, members))
        else:
            known = core.voter_set
            after = known.without(node_id) if verb == "remove" else known.with_voter(voter)
            core.change_voters(VotersChange(voters=after.voters))
        self.settle(self.nodes[leader])

    def voters(self) -> None:
        """Whom each holds for the voters."""
        for node in self.nodes.values():
            if node.raft is not None:
                history = node.core.log.voters
                what = "voter" if node.core.is_voter else "observer"
                version = history.last.kraft_version
                self.out.append(
                    f"{node.node_id} {what} of {history.last!r} since={history.last_offset} version={version}"
                )

    def states(self) -> None:
        for node in self.nodes.values():
            if node.raft is None:
                self.out.append(f"{node.node_id} down log={node.log_text()}")
                continue
            self.out.append(
                f"{node.node_id} {node.core.role!r} hw={node.core.high_watermark} log={node.log_text()}"
            )
