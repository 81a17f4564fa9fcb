"""What can go wrong in the controller quorum, under the project's remedies.

Unavailable
├── NotLeader         this node does not lead the quorum; `leader_id` says who does, -1 if nobody
├── CommandLost       the active controller of another node did not say what became of a command
└── ProposalDropped   the command was accepted and its records were lost with the leadership or the disk's
    room
Exhausted
├── TooManyCommands   so many wait already
├── CommandNotTaken   the active controller of another node says one of these two
└── LogFull           the metadata log's disk is full: commands that grow are refused, deletions pass
Fenced
└── EpochMismatch     a message of another epoch
Corrupt
├── LogCorrupt        the metadata log's bytes fail their check where they were once whole
│   ├── OffsetWithinBatch    no batch begins where one was to be read
│   └── LogMismatch   the directory is sound, and another node's or cluster's
│       ├── VotersChanged    or the quorum has other voters than it had
│       └── VotersDiffer     or whoever leads was told of other voters than this node
├── SnapshotCorrupt   no snapshot can be read and the log does not reach back far enough
└── UnknownRecord     a record that this build cannot apply: written by a later one
"""

from __future__ import annotations

from millrace.runtime.errors import Corrupt, Exhausted, Fenced, Unavailable


class NotLeader(Unavailable):
    def __init__(self, leader_id: int = -1) -> None:
        super().__init__(leader_id)
        self.leader_id = leader_id

    def __str__(self) -> str:
        who = "nobody leads it now" if self.leader_id < 0 else f"node {self.leader_id} does"
        return f"this node does not lead the quorum: {who}"


class ProposalDropped(Unavailable):
    """What was decided was not committed while this node led: whether it will be is unknown."""

    def __init__(self, leader_id: int = -1) -> None:
        super().__init__(leader_id)
        self.leader_id = leader_id

    def __str__(self) -> str:
        who = "nobody leads it now" if self.leader_id < 0 else f"node {self.leader_id} does"
        return f"this node leads the quorum no more, before a command was committed: {who}"


class CommandLost(Unavailable):
    """Sent to the active controller, and not answered: whether it was carried out is unknown."""

    def __init__(self, leader_id: int, why: str) -> None:
        super().__init__(leader_id, why)
        self.leader_id = leader_id
        self.why = why

    def __str__(self) -> str:
        who = f"the active controller, node {self.leader_id},"
        return f"{who} did not say what became of a command: {self.why}"


class CommandNotTaken(Exhausted):
    """The active controller of another node has no room for a command, or too many wait there."""

    def __init__(self, leader_id: int, code: str) -> None:
        super().__init__(leader_id, code)
        self.leader_id = leader_id
        self.code = code

    def __str__(self) -> str:
        return f"the active controller, node {self.leader_id}, takes no such command now: {self.code}"


class LogFull(Exhausted):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"the disk of the metadata log {self.path} is full: only deletions are taken until there is room"
        )


class TooManyCommands(Exhausted):
    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count

    def __str__(self) -> str:
        return f"{self.count} commands wait for the metadata log already"


class EpochMismatch(Fenced):
    def __init__(self, epoch: int, current: int) -> None:
        super().__init__(epoch, current)
        self.epoch = epoch
        self.current = current

    def __str__(self) -> str:
        return f"a message of epoch {self.epoch}, where the quorum is in epoch {self.current}"


class LogCorrupt(Corrupt):
    """`path` and `position` of the first bad batch, and why it is one."""

    def __init__(self, path: str, position: int, why: str) -> None:
        super().__init__(f"{path}: at byte {position}: {why}")
        self.path = path
        self.position = position
        self.why = why


class OffsetWithinBatch(LogCorrupt):
    """An offset at which no batch begins was to be read from: for who reads its own log that is damage, and
    of a peer a question that no member of the quorum asks."""


class LogMismatch(LogCorrupt):
    """`field` is node.id or cluster.id."""

    def __init__(self, path: str, field: str, found: object, expected: object) -> None:
        super().__init__(path, 0, f"{field} is {found}, not {expected}")
        self.field = field
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return (
            f"{self.path} was written with {self.field}={self.found}, and now "
            f"{self.field}={self.expected} is set"
        )


class VotersChanged(LogMismatch):
    """The node last took part in a quorum of several, of other voters."""

    def __init__(self, path: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
        named = tuple(", ".join(map(str, voters)) for voters in (found, expected))
        super().__init__(path, "controller.quorum.voters", *named)

    def __str__(self) -> str:
        return (
            f"this node last voted in a quorum of the nodes {self.found} ({self.path}), and is now to be one "
            f"of {self.expected}"
        )


class VotersDiffer(LogMismatch):
    """At kraft.version 0, where each node is told a list. Nothing of the leader's log was written here."""

    def __init__(self, leader: int, epoch: int, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
        named = tuple(", ".join(map(str, voters)) for voters in (found, expected))
        super().__init__(f"node {leader}", "controller.quorum.voters", *named)
        self.leader = leader
        self.epoch = epoch

    def __str__(self) -> str:
        return (
            f"node {self.leader} leads epoch {self.epoch} of a quorum of the nodes {self.found}, and this "
            f"node is told that the voters are {self.expected}"
        )


class SnapshotCorrupt(Corrupt):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


class UnknownRecord(Corrupt):
    def __init__(self, what: str) -> None:
        super().__init__(f"metadata record {what} is not known to this version of millrace")
        self.what = what
