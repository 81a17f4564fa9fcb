"""Who votes: voter sets as values, and the history of them that a log holds (KIP-853). Pure.

    static            kraft.version 0: the ids of controller.quorum.voters, whatever directory they have
    1@A 2@B 3@C       kraft.version 1: an id and the directory it votes with, from records in the log

A set is in force from the offset of its record on, whether that is committed or not; a record that is cut off
the log takes its set with it. Not here: when a set may change (core.py), records as bytes (voter_records.py).
Kept true: a history's offsets ascend.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Final, NamedTuple

from millrace.protocol.dataclass import dataclass

NO_DIRECTORY: Final = bytes(16)  # not said, or not judged
BEFORE_LOG: Final = -1  # the offset of what a directory was formatted with
STATIC, DYNAMIC = 0, 1  # levels of kraft.version
KRAFT_VERSIONS: Final = (STATIC, DYNAMIC)  # the lowest and the highest that this build runs at

Replica = tuple[int, bytes]  # node id and directory id


class Endpoint(NamedTuple):
    """A controller listener."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Voter:
    """`directory_id`: NO_DIRECTORY of a voter that is known by its id alone. `kraft_versions`: the lowest and
    the highest that it runs at."""

    node_id: int
    directory_id: bytes = NO_DIRECTORY
    endpoints: tuple[Endpoint, ...] = ()
    kraft_versions: tuple[int, int] = (STATIC, STATIC)

    def is_at(self, directory_id: bytes) -> bool:
        """Whether a node of its id with this directory is the voter, and not a copy, or on another disk."""
        return self.directory_id in (NO_DIRECTORY, directory_id)


@dataclass(frozen=True, slots=True)
class VoterSet:
    """`voters` by id, in order."""

    voters: tuple[Voter, ...] = ()
    kraft_version: int = STATIC

    @classmethod
    def static(cls, ids: Iterable[int]) -> VoterSet:
        return cls(tuple(map(Voter, ids)))

    def __repr__(self) -> str:
        return ",".join(str(voter.node_id) for voter in self.voters) or "nobody"

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(voter.node_id for voter in self.voters)

    def get(self, node_id: int) -> Voter | None:
        return next((voter for voter in self.voters if voter.node_id == node_id), None)

    def directory_of(self, node_id: int) -> bytes:
        voter = self.get(node_id)
        return NO_DIRECTORY if voter is None else voter.directory_id

    def has(self, node_id: int, directory_id: bytes) -> bool:
        """Whether a node of this id with this directory is a voter."""
        voter = self.get(node_id)
        return voter is not None and voter.is_at(directory_id)

    def is_only(self, node_id: int, directory_id: bytes) -> bool:
        return len(self.voters) == 1 and self.has(node_id, directory_id)

    def with_voter(self, added: Voter) -> VoterSet:
        """With it in the place of who has its id, if anybody."""
        others = [voter for voter in self.voters if voter.node_id != added.node_id]
        return replace(self, voters=in_order([*others, added]))

    def without(self, node_id: int) -> VoterSet:
        return replace(self, voters=tuple(voter for voter in self.voters if voter.node_id != node_id))

    def is_next_to(self, other: VoterSet) -> bool:
        """Whether a majority of one shares a member with any majority of the other: they differ by one voter
        at most. A voter that is known by its id alone is the same with any directory."""
        before, after = self._keys(other), other._keys(self)
        return len(before - after) + len(after - before) <= 1

    def _keys(self, other: VoterSet) -> frozenset[Replica]:
        """Without the directory where the other set knows none."""
        known = {voter.node_id: voter.directory_id for voter in other.voters}
        return frozenset(
            (one.node_id, NO_DIRECTORY if known.get(one.node_id) == NO_DIRECTORY else one.directory_id)
            for one in self.voters
        )


@dataclass(frozen=True, slots=True)
class VotersChange:
    """What the control records of one batch say of voters; None of what they do not name."""

    kraft_version: int | None = None
    voters: tuple[Voter, ...] | None = None

    def on(self, before: VoterSet) -> VoterSet:
        version = before.kraft_version if self.kraft_version is None else self.kraft_version
        return VoterSet(before.voters if self.voters is None else self.voters, version)


@dataclass(slots=True)
class VoterHistory:
    """`static`: where the log and its snapshot name no voters. `changes`: what stands from which offset
    on."""

    static: VoterSet = field(default_factory=VoterSet)
    changes: list[tuple[int, VoterSet]] = field(default_factory=list)

    @property
    def last(self) -> VoterSet:
        """In force, committed or not."""
        return self.changes[-1][1] if self.changes else self.static

    @property
    def last_offset(self) -> int:
        """Of the record that the last one came with; BEFORE_LOG where no record of the log did."""
        return self.changes[-1][0] if self.changes else BEFORE_LOG

    def at(self, end: int) -> VoterSet:
        """In force where the log ends at `end`."""
        place = bisect_left(self.changes, end, key=lambda change: change[0])
        return self.changes[place - 1][1] if place else self.static

    def since(self, end: int) -> list[VoterSet]:
        """In force where the log ends at `end`, and all that came after."""
        return [self.at(end), *(known for offset, known in self.changes if offset >= end)]

    def append(self, offset: int, change: VotersChange) -> None:
        assert offset > self.last_offset, (offset, self.last_offset)
        self.changes.append((offset, change.on(self.last)))

    def truncate(self, end: int) -> None:
        """The log was cut at `end`: what came with a record there or above is no more."""
        del self.changes[bisect_left(self.changes, end, key=lambda change: change[0]) :]

    def trim(self, start: int) -> None:
        """Forgets what nothing from `start` on needs: the set that is in force there is kept."""
        del self.changes[: max(0, bisect_left(self.changes, start, key=lambda change: change[0]) - 1)]

    def restart_at(self, end: int, voters: VoterSet | None) -> None:
        """A snapshot of all below `end` took the place of the log; None: it names no voters."""
        self.changes = [] if voters is None else [(end - 1, voters)]


def in_order(voters: Sequence[Voter]) -> tuple[Voter, ...]:
    """By id, as a set has them."""
    return tuple(sorted(voters, key=lambda voter: voter.node_id))
