"""The roles of a replica: each role's own data, which exists only while the role does.

    Unattached ──timeout──> Prospective ──majority would vote──> Candidate ──majority voted──> Leader
        │  ^                     ^  │ refused                        │ refused, timeout          │ quorum
                                                                                                 lost,
        │  └─────────────────────│──┘                                └──> Prospective            │ asked to
        └─leader heard─> Follower ┘ no leader heard for long                                     v
                                                              Prospective <──timeout────── Resigned

A higher epoch, wherever it is heard, makes any of them Unattached in it, or Follower when it names its
leader. Prospective asks in its own epoch, so that a replica that is cut off does not push the others' epoch
up (pre-vote).

Not here: transitions (core.py). Times are ticks.
"""

from __future__ import annotations

from dataclasses import field

from millrace.kraft.raft.messages import NOBODY
from millrace.kraft.raft.progress import Progress
from millrace.kraft.raft.voters import Replica
from millrace.protocol.dataclass import dataclass


@dataclass(slots=True)
class Unattached:
    """Knows of no leader. May vote once."""

    epoch: int
    due: int  # stands for election then
    voted: int = NOBODY

    def __repr__(self) -> str:
        return f"Unattached epoch={self.epoch}" + (f" voted={self.voted}" if self.voted != NOBODY else "")


@dataclass(slots=True)
class Follower:
    epoch: int
    leader: int
    due: int  # the leader is given up then
    voted: int = NOBODY
    has_fetched: bool = False  # from this leader: it refuses pre-votes from then on
    has_caught_up: bool = False  # it has had all that was committed when this leader said so
    fetching_since: int = NOBODY  # tick of the fetch that is under way

    def __repr__(self) -> str:
        return f"Follower epoch={self.epoch} leader={self.leader}"


@dataclass(slots=True)
class Prospective:
    epoch: int
    due: int
    voted: int = NOBODY
    leader: int = NOBODY  # of this epoch, not heard for long; followed again when nobody would vote
    votes: dict[int, bool] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Prospective epoch={self.epoch} {votes_text(self.votes)}"


@dataclass(slots=True)
class Candidate:
    epoch: int
    due: int
    votes: dict[int, bool] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Candidate epoch={self.epoch} {votes_text(self.votes)}"


@dataclass(slots=True)
class Leader:
    epoch: int
    start: int  # offset of this epoch's LeaderChange; nothing is committed before it is
    since: int
    granted_by: tuple[int, ...]
    voters: dict[int, Progress] = field(default_factory=dict)  # itself included
    observers: dict[Replica, Progress] = field(default_factory=dict)

    def __repr__(self) -> str:
        ends = " ".join(f"{voter}:{progress.end}" for voter, progress in sorted(self.voters.items()))
        return f"Leader epoch={self.epoch} start={self.start} {ends}"


@dataclass(slots=True)
class Resigned:
    """Led this epoch, and will not again; waits for the others to elect."""

    epoch: int
    due: int

    def __repr__(self) -> str:
        return f"Resigned epoch={self.epoch}"


Role = Unattached | Follower | Prospective | Candidate | Leader | Resigned


def has_caught_up(role: Role) -> bool:
    """Whether it has had, once, all that was committed when its leader answered. What a leader knows of that
    before something of its own epoch is committed may be less."""
    return isinstance(role, Follower) and role.has_caught_up


def heard_in(role: Role, node_id: int) -> int:
    """As `leader_in`; NOBODY while that one is silent, and the role looks for another."""
    return NOBODY if isinstance(role, Prospective) else leader_in(role, node_id)


def votes_text(votes: dict[int, bool]) -> str:
    return " ".join(f"{voter}:{'yes' if granted else 'no'}" for voter, granted in sorted(votes.items()))


def voted_in(role: Role, node_id: int) -> int:
    """Whom `node_id` in this role has voted for in the role's epoch."""
    if isinstance(role, Unattached | Follower | Prospective):
        return role.voted
    return node_id


def leader_in(role: Role, node_id: int) -> int:
    """Who leads the role's epoch, as far as the role knows."""
    if isinstance(role, Follower | Prospective):
        return role.leader
    return node_id if isinstance(role, Leader) else NOBODY
