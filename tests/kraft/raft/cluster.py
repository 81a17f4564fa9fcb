"""A cluster of raft cores on one table: their durable state, the messages between them, and what transcripts
print of it.

Persisting is immediate. A crash forgets what was not given as Ready, which is nothing but the role; a restart
begins from the durable state and log. Chance is fixed: node n waits n - 1 ticks longer than the least.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millrace.kraft.config import RaftSettings
from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.log_view import Entry, LogView
from millrace.kraft.raft.messages import Fetch, FetchReply, Message
from millrace.kraft.raft.ready import LeaderChange, QuorumState

SETTINGS = {
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

    def boot(self) -> None:
        settings = RaftSettings(self.node_id, self.voters, **SETTINGS)  # type: ignore[arg-type]
        end = self.entries[-1].end if self.entries else self.start
        epochs: list[tuple[int, int]] = []
        for entry in self.entries:
            if not epochs or epochs[-1][0] < entry.epoch:
                epochs.append((entry.epoch, entry.base))
        view = LogView(self.start, end, end, epochs, self.snapshot)
        self.raft = Raft(settings, self.state, view, lambda bound: (self.node_id - 1) % bound)
        self.raft.start()

    @property
    def core(self) -> Raft:
        assert self.raft is not None, f"node {self.node_id} is down"
        return self.raft

    def log_text(self) -> str:
        return " ".join(f"{e.base}:{payload_text(e.payload)}@{e.epoch}" for e in self.entries) or "-"


def payload_text(payload: Any) -> str:
    return f"leader{payload.leader}" if isinstance(payload, LeaderChange) else str(payload)


def is_idle(message: Message) -> bool:
    """A fetch, or the answer to one that brings nothing."""
    if isinstance(message, FetchReply):
        is_news = message.diverging or message.snapshot or message.leader != message.source
        return not is_news and message.end == message.offset
    return isinstance(message, Fetch)


class Cluster:
    def __init__(self, voters: tuple[int, ...], observers: tuple[int, ...] = ()) -> None:
        self.nodes = {node_id: Node(node_id, voters) for node_id in (*voters, *observers)}
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
        node.core.on_snapshot_fetched(*snapshot)

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
            for message in batch:
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

    def tick(self, node_ids: list[int], count: int) -> None:
        for _ in range(count):
            for node_id in node_ids:
                node = self.nodes[node_id]
                if node.raft is not None:
                    node.core.tick()
                    self.settle(node)

    def states(self) -> None:
        for node in self.nodes.values():
            if node.raft is None:
                self.out.append(f"{node.node_id} down log={node.log_text()}")
                continue
            self.out.append(
                f"{node.node_id} {node.core.role!r} hw={node.core.high_watermark} log={node.log_text()}"
            )
