"""What voters and observers of the quorum tell one another, as values. The transport maps them to Kafka's
RPCs.

Every message carries its sender's epoch; every reply says in addition who leads that epoch, as far as the
sender knows (-1: nobody). Not here: what is done on one (core.py). `__repr__` is what transcripts print.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from millrace.kraft.raft.voters import NO_DIRECTORY
from millrace.protocol.dataclass import dataclass

if TYPE_CHECKING:
    from millrace.kraft.raft.log_view import Entry

NOBODY = -1


@dataclass(slots=True)
class Message:
    source: int
    target: int
    epoch: int
    request_id: int = field(default=0, kw_only=True)  # the transport's: a reply has that of its request

    def words(self) -> str:
        return ""

    def __repr__(self) -> str:
        words = self.words()
        tail = f" {words}" if words else ""
        return f"{self.source}->{self.target} {type(self).__name__} epoch={self.epoch}{tail}"


@dataclass(slots=True, repr=False)
class Reply(Message):
    leader: int = NOBODY


@dataclass(slots=True, repr=False)
class Vote(Message):
    """Asks for a vote in `epoch`; a pre-vote asks whether one would be given, and binds nobody.

    `directory_id` is the candidate's; `target_directory` that of the voter that it means, NO_DIRECTORY where
    it means whoever has the id: both of this and of BeginEpoch."""

    last_epoch: int = 0
    end: int = 0
    is_pre_vote: bool = False
    directory_id: bytes = NO_DIRECTORY
    target_directory: bytes = NO_DIRECTORY

    def words(self) -> str:
        return f"log={self.end}@{self.last_epoch}" + (" pre" if self.is_pre_vote else "")


@dataclass(slots=True, repr=False)
class VoteReply(Reply):
    """`is_wrong_key`: another directory of this id is meant."""

    is_granted: bool = False
    is_pre_vote: bool = False
    is_wrong_key: bool = False

    def words(self) -> str:
        answer = "granted" if self.is_granted else f"refused leader={self.leader}"
        return answer + " wrong-key" * self.is_wrong_key + " pre" * self.is_pre_vote


@dataclass(slots=True, repr=False)
class BeginEpoch(Message):
    """The leader tells a voter that it leads."""

    target_directory: bytes = NO_DIRECTORY


@dataclass(slots=True, repr=False)
class BeginEpochReply(Reply):
    is_wrong_key: bool = False

    def words(self) -> str:
        return "wrong-key" if self.is_wrong_key else ""


@dataclass(slots=True, repr=False)
class EndEpoch(Message):
    """The leader steps down; those named first should stand first. `directories`: theirs, where they have
    one."""

    preferred: tuple[int, ...] = ()
    directories: tuple[bytes, ...] = ()

    def words(self) -> str:
        return f"preferred={','.join(map(str, self.preferred))}"


@dataclass(slots=True, repr=False)
class Fetch(Message):
    """Asks for the log from `offset` on, and says thereby that everything below is durable at the asker."""

    offset: int = 0
    last_epoch: int = 0  # of the entry before `offset`
    high_watermark: int = 0  # as the asker knows it: it need not wait when the leader knows more
    directory_id: bytes = NO_DIRECTORY  # the asker's

    def words(self) -> str:
        return f"offset={self.offset}@{self.last_epoch} hw={self.high_watermark}"


@dataclass(slots=True, repr=False)
class FetchReply(Reply):
    """Exactly one of: entries of [offset, end) (none when equal), where the asker's log diverges, or a
    snapshot's id.

    `offset` and `last_epoch` are the fetch's: an asker whose log has moved since knows the answer for a stale
    one. The core says which offsets; the driver reads the entries and puts them in.
    """

    offset: int = 0
    last_epoch: int = 0
    end: int = 0
    high_watermark: int = 0
    diverging: tuple[int, int] | None = None  # (epoch, its end at the leader)
    snapshot: tuple[int, int] | None = None  # (end, epoch)
    entries: Sequence[Entry] = ()

    def words(self) -> str:
        if self.leader != self.source:
            return f"not leader, leader={self.leader}"
        if self.diverging is not None:
            return f"diverging epoch={self.diverging[0]} end={self.diverging[1]}"
        if self.snapshot is not None:
            return f"snapshot={self.snapshot[0]}@{self.snapshot[1]}"
        return f"[{self.offset},{self.end}) hw={self.high_watermark}"
