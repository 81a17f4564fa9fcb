"""Shelves: up to four stream-set objects of one node that metadata does not tell apart.

What of a stream lies on a shelf is one range (ranges.py) with a bit for each object that has some of it: metadata grows by a range a stream
for every fourth upload, and a reader looks into the indexes of at most four objects, all at once. An object of its own needs no shelf.

Uploads fill one shelf after another, compaction fills others. Places are given in order and never again, so that a bit whose object has gone
means nothing. Kept true: a node has at most one shelf for each purpose that is not full; a shelf has an object that is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from millrace.kraft.tables.ranges import PLACE_BITS, Holder
from millrace.s3stream.ids import ObjectId

GONE: Final = -1


class Purpose(IntEnum):
    """Stored in metadata: never renumber."""

    UPLOADS = 0
    COMPACTION = 1


class Shelf(NamedTuple):
    node_id: int
    purpose: int
    members: tuple[int, ...]  # object ids by place, GONE for those that are no longer committed
    range_count: int = 0  # ranges of streams that name it

    @property
    def is_full(self) -> bool:
        return len(self.members) == PLACE_BITS

    def at(self, places: int) -> Iterator[ObjectId]:
        """The objects at these places (bits), the oldest first."""
        for place, object_id in enumerate(self.members):
            if places >> place & 1 and object_id != GONE:
                yield ObjectId(object_id)

    def joined(self, object_id: int) -> Shelf:
        return self._replace(members=(*self.members, object_id))

    def left(self, place: int) -> Shelf | None:
        """Without the object there; None when it was the last."""
        members = (*self.members[:place], GONE, *self.members[place + 1 :])
        return self._replace(members=members) if any(one != GONE for one in members) else None


def on_shelf(shelf_id: int, place: int) -> Holder:
    return shelf_id << PLACE_BITS | 1 << place


def on_its_own(object_id: int) -> Holder:
    return object_id << PLACE_BITS
