"""Stream-set groups: up to four stream-set objects of one node that metadata does not tell apart.

What of a stream lies in a group is one range (ranges.py) with a bit for each object that has some of it:
metadata grows by a range a stream for every fourth upload, and a reader looks into the indexes of at most
four objects, all at once. An object of its own needs no group.

Uploads fill one group after another, compaction fills others. Slots are given in order and never again, so
that a bit whose object has gone means nothing. Kept true: a node has at most one group for each purpose that
is not full; a group has an object that is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from millrace.kraft.tables.ranges import SLOT_BITS, Holder
from millrace.s3stream.ids import ObjectId

GONE: Final = -1


class Purpose(IntEnum):
    """Stored in metadata: never renumber."""

    UPLOADS = 0
    COMPACTION = 1


class StreamSetGroup(NamedTuple):
    node_id: int
    purpose: int
    members: tuple[int, ...]  # object ids by slot, GONE for those that are no longer committed
    range_count: int = 0  # ranges of streams that name it

    @property
    def is_full(self) -> bool:
        return len(self.members) == SLOT_BITS

    def at(self, slots: int) -> Iterator[ObjectId]:
        """The objects at these slots (bits), the oldest first."""
        for slot, object_id in enumerate(self.members):
            if slots >> slot & 1 and object_id != GONE:
                yield ObjectId(object_id)

    def joined(self, object_id: int) -> StreamSetGroup:
        return self._replace(members=(*self.members, object_id))

    def left(self, slot: int) -> StreamSetGroup | None:
        """Without the object there; None when it was the last."""
        members = (*self.members[:slot], GONE, *self.members[slot + 1 :])
        return self._replace(members=members) if any(one != GONE for one in members) else None


def in_group(group_id: int, slot: int) -> Holder:
    return group_id << SLOT_BITS | 1 << slot


def ungrouped(object_id: int) -> Holder:
    return object_id << SLOT_BITS
