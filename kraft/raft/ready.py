"""What goes in and out of the core beside messages: the state that survives, the epoch's first record, what
is to be done.

Not here: who produces them (core.py) and who carries them out (driver.py).
"""

from __future__ import annotations

from dataclasses import field

from millrace.kraft.raft.log_view import Entry
from millrace.kraft.raft.messages import NOBODY, Message
from millrace.kraft.raft.voters import NO_DIRECTORY, STATIC, VoterSet
from millrace.protocol.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class QuorumState:
    """What must survive a restart: the quorum-state file. `kraft_version`, in force with the log as it is,
    says how that is written; without it no directory is remembered."""

    epoch: int = 0
    leader: int = NOBODY
    voted: int = NOBODY
    voted_directory: bytes = NO_DIRECTORY
    kraft_version: int = STATIC

    def before_raise(self, kraft_version: int) -> QuorumState:
        """The same, while the record that raises it from this version is not durable."""
        return QuorumState(self.epoch, self.leader, self.voted, NO_DIRECTORY, kraft_version)


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """The payload of the control record that opens an epoch. `voter_set`: those voters, from kraft.version 1
    on. `is_first`: no log has them yet, for the directory was formatted with them; they are written behind
    it."""

    leader: int
    voters: tuple[int, ...]
    granted_by: tuple[int, ...]
    voter_set: VoterSet | None = None
    is_first: bool = False


@dataclass(slots=True)
class Ready:
    """What is to be done, in the order of the fields; core.py says why."""

    state: QuorumState | None = None
    truncate_to: int | None = None
    snapshot: tuple[int, int] | None = None  # to be fetched from the leader, then `on_snapshot_fetched`
    entries: list[Entry] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    commit_end: int = 0  # committed and durable here
