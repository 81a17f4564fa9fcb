"""Objects in the store: prepared, committed, pending deletion; and for every stream who holds what of it.

    prepared --CommitObject, CompactObjects--> committed
        |                                          |
        |  the deadline passed,                    |  its last range dies, or compaction
        |  or nothing in it was alive              v
        `------------------------------------> pending deletion --file deleted--> gone

An object of one stream, its own or a composite, is named with its exact range. What a stream-set object holds
stands in its own index alone: here stands in which group (stream_set_groups.py) it is, and a stream's range
names the group. A range that an earlier owner's write-ahead log owes, and one that was lost with such a log,
names nobody. Each committed object counts the ranges that name it, so that a trim or a deletion marks for
deletion what it empties in the same commit, without looking at anything else: an object of one stream, and
one that is alone with a stream's range, at once; those that share ranges when the last of these is trimmed,
or when compaction ends them.

Not here: changes (objects_edit.py), commands (kraft/commands/objects.py, kraft/commands/compaction.py). Kept
true: an id is in exactly one state; a committed object is named by at least one range; ids are given once.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

from millrace.kraft.tables.ranges import LOST, OWED, SLOT_BITS, SLOTS, Holder, StreamRanges
from millrace.kraft.tables.sorted_map import SortedMap
from millrace.kraft.tables.stream_set_groups import Purpose, StreamSetGroup
from millrace.kraft.tables.streams import StreamState
from millrace.protocol.dataclass import dataclass
from millrace.s3stream.ids import (
    LOST_RANGE,
    OWED_RANGE,
    ObjectHint,
    ObjectId,
    ObjectKind,
    StreamId,
    StreamObjectInfo,
    StreamSetInfo,
)


class ObjectState(IntEnum):
    PREPARED = 0
    COMMITTED = 1
    PENDING_DELETION = 2


class StoredObject(NamedTuple):
    state: ObjectState
    time_ms: int  # prepared: the deadline; committed: when its oldest data was; pending deletion: since when
    kind: ObjectKind = ObjectKind.STREAM_SET
    size_bytes: int = 0
    node_id: int = -1  # by whom it was prepared, and written
    alive: int = 0  # ranges that name it
    was_committed: bool = False  # pending deletion: a retry of its commit is a success
    with_links: bool = False  # pending deletion: a composite whose links go with it
    # Committed, of one stream: what of it.
    stream_id: int = -1
    start: int = 0
    end: int = 0
    # Committed, a stream-set object: its place in the node's order of data, and in which group.
    order_id: int = 0
    group_id: int = -1
    slot: int = 0
    # token of the incarnation that wrote it, which its footer names; 0: written at millrace.version 0
    writer: int = 0

    def of_stream(self, stream_id: int, start: int, end: int) -> StoredObject:
        return self._replace(stream_id=stream_id, start=start, end=end)

    def in_group(self, order_id: int, group_id: int, slot: int) -> StoredObject:
        return self._replace(order_id=order_id, group_id=group_id, slot=slot)


@dataclass(frozen=True, slots=True)
class Objects:
    by_id: SortedMap[ObjectId, StoredObject]
    ranges: SortedMap[StreamId, StreamRanges]  # of streams that have something committed and not trimmed
    groups: SortedMap[int, StreamSetGroup]
    open_groups: SortedMap[tuple[int, Purpose], int]  # by node: the group that the next object goes to
    sets: SortedMap[tuple[int, int, ObjectId], None]  # committed stream-set objects by (node, order, id)
    deadlines: SortedMap[tuple[int, ObjectId], None]  # of the prepared
    pending_deletions: SortedMap[tuple[int, ObjectId], None]  # by when they were marked
    next_id: ObjectId
    committed_bytes: int

    def get(self, object_id: int) -> StoredObject | None:
        return self.by_id.get(ObjectId(object_id))

    def candidates(self, stream: StreamState, offset: int, limit: int) -> list[ObjectHint]:
        """As ObjectCatalog.candidates. What may hold `offset` comes whole, whatever the limit."""
        ranges = self.ranges.get(stream.stream_id)
        found: list[ObjectHint] = []
        for start, end, holder in ranges.from_offset(offset, stream.end) if ranges is not None else ():
            if found and len(found) >= limit:
                break
            found += self._hints(start, end, holder)
        return found

    def _hints(self, start: int, end: int, holder: Holder) -> Iterator[ObjectHint]:
        if holder in (OWED, LOST):
            place = OWED_RANGE if holder == OWED else LOST_RANGE
            yield ObjectHint(place, ObjectKind.STREAM, 0, start, end)
            return
        for object_id in self.held_by(holder):
            stored = self.by_id[object_id]
            yield ObjectHint(object_id, stored.kind, stored.size_bytes, start, end, stored.writer)

    def held_by(self, holder: Holder) -> list[ObjectId]:
        """The committed objects that a holder names, the oldest first; none of what is owed, or lost."""
        if not holder & SLOTS:
            return [] if holder in (OWED, LOST) else [ObjectId(holder >> SLOT_BITS)]
        group = self.groups.get(holder >> SLOT_BITS)
        return [] if group is None else list(group.at(holder & SLOTS))

    def stream_sets(self, node_id: int) -> list[StreamSetInfo]:
        """The committed stream-set objects that this node wrote, newest data last."""
        found = []
        for (node, order_id, object_id), _ in self.sets.items((node_id, 0, ObjectId(0))):
            if node != node_id:
                break
            stored = self.by_id[object_id]
            found.append(StreamSetInfo(object_id, stored.size_bytes, order_id, stored.time_ms, stored.writer))
        return found

    def nodes_with_sets(self) -> list[int]:
        """Ids of nodes that wrote committed stream-set objects, in order; a search for each."""
        found: list[int] = []
        while (key := next((one for one, _ in self.sets.items(_beyond(found))), None)) is not None:
            found.append(key[0])
        return found

    def of_stream(self, stream: StreamState) -> list[StreamObjectInfo]:
        """Objects of this stream alone, in offset order."""
        ranges = self.ranges.get(stream.stream_id)
        found = []
        for start, end, holder in ranges.all(stream.end) if ranges is not None else ():
            if not holder & SLOTS and holder not in (OWED, LOST):
                object_id = ObjectId(holder >> SLOT_BITS)
                stored = self.by_id[object_id]
                info = StreamObjectInfo(object_id, stored.kind, stored.size_bytes, start, end, stored.writer)
                found.append(info)
        return found

    def prepared_before(self, now_ms: int, limit: int) -> list[ObjectId]:
        """Prepared objects whose deadline has passed, the oldest first."""
        return list(islice(_ids_until(self.deadlines, now_ms), limit))

    def pending_deletions_before(self, time_ms: int, limit: int) -> list[ObjectId]:
        """Objects marked for deletion at or before `time_ms`, the oldest first: whose files may be deleted,
        then RemoveObjects."""
        return list(islice(_ids_until(self.pending_deletions, time_ms), limit))

    @property
    def committed_count(self) -> int:
        return len(self.by_id) - len(self.deadlines) - len(self.pending_deletions)


NO_OBJECTS = Objects(
    SortedMap(), SortedMap(), SortedMap(), SortedMap(), SortedMap(), SortedMap(), SortedMap(), ObjectId(0), 0
)


def _beyond(nodes: list[int]) -> tuple[int, int, ObjectId] | None:
    return (nodes[-1] + 1, 0, ObjectId(0)) if nodes else None


def _ids_until(times: SortedMap[tuple[int, ObjectId], None], time_ms: int) -> Iterator[ObjectId]:
    for moment, object_id in times:
        if moment > time_ms:
            return
        yield object_id
