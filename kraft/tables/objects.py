"""Objects in the store: prepared, committed, doomed; and for every stream who holds what of it.

    prepared --CommitObject, CompactObjects--> committed --its last range dies, or compaction--> doomed --file deleted--> gone
        `-------------------- the deadline passed, or nothing in it was alive --------------------^

An object of one stream, its own or a composite, is named with its exact range. What a stream-set object holds stands in its own index alone:
here stands on which shelf (shelves.py) it lies, and a stream's range names the shelf. Each committed object counts the ranges that name it,
so that a trim or a deletion dooms what it empties in the same commit, without looking at anything else: an object of one stream, and one that
is alone with a stream's range, at once; those that share ranges when the last of these is trimmed, or when compaction ends them.

Not here: changes (objects_edit.py), commands (object_commands.py, compaction_commands.py). Kept true: an id is in exactly one state; a committed
object is named by at least one range; ids are given once.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

from millrace.kraft.sorted_map import SortedMap
from millrace.kraft.tables.ranges import PLACE_BITS, PLACES, Holder, StreamRanges
from millrace.kraft.tables.shelves import Purpose, Shelf
from millrace.kraft.tables.streams import StreamState
from millrace.protocol.dataclass import dataclass
from millrace.s3stream.ids import ObjectHint, ObjectId, ObjectKind, StreamId, StreamObjectInfo, StreamSetInfo


class ObjectState(IntEnum):
    PREPARED = 0
    COMMITTED = 1
    DOOMED = 2


class StoredObject(NamedTuple):
    state: ObjectState
    time_ms: int  # prepared: the deadline; committed: when its oldest data was; doomed: since when
    kind: ObjectKind = ObjectKind.STREAM_SET
    size_bytes: int = 0
    node_id: int = -1  # by whom it was prepared, and written
    alive: int = 0  # ranges that name it
    was_committed: bool = False  # doomed: a retry of its commit is a success
    is_deep: bool = False  # doomed: a composite whose links go with it
    # Committed, of one stream: what of it.
    stream_id: int = -1
    start: int = 0
    end: int = 0
    # Committed, a stream-set object: its place in the node's order of data, and on which shelf.
    order_id: int = 0
    shelf_id: int = -1
    place: int = 0
    writer: int = 0  # token of the incarnation that wrote it, which its footer names; 0: written at millrace.version 0

    def of_stream(self, stream_id: int, start: int, end: int) -> StoredObject:
        return self._replace(stream_id=stream_id, start=start, end=end)

    def on_shelf(self, order_id: int, shelf_id: int, place: int) -> StoredObject:
        return self._replace(order_id=order_id, shelf_id=shelf_id, place=place)


@dataclass(frozen=True, slots=True)
class Objects:
    by_id: SortedMap[ObjectId, StoredObject]
    ranges: SortedMap[StreamId, StreamRanges]  # of streams that have something committed and not trimmed
    shelves: SortedMap[int, Shelf]
    open_shelves: SortedMap[tuple[int, Purpose], int]  # by node: the shelf that the next object goes to
    sets: SortedMap[tuple[int, int, ObjectId], None]  # committed stream-set objects by (node, order, id)
    deadlines: SortedMap[tuple[int, ObjectId], None]  # of the prepared
    dooms: SortedMap[tuple[int, ObjectId], None]  # of the doomed, by time
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
        for object_id in self.held_by(holder):
            stored = self.by_id[object_id]
            yield ObjectHint(object_id, stored.kind, stored.size_bytes, start, end, stored.writer)

    def held_by(self, holder: Holder) -> list[ObjectId]:
        """The committed objects that a holder names, the oldest first."""
        if not holder & PLACES:
            return [ObjectId(holder >> PLACE_BITS)]
        shelf = self.shelves.get(holder >> PLACE_BITS)
        return [] if shelf is None else list(shelf.at(holder & PLACES))

    def stream_sets(self, node_id: int) -> list[StreamSetInfo]:
        """The committed stream-set objects that this node wrote, newest data last."""
        found = []
        for (node, order_id, object_id), _ in self.sets.items((node_id, 0, ObjectId(0))):
            if node != node_id:
                break
            stored = self.by_id[object_id]
            found.append(StreamSetInfo(object_id, stored.size_bytes, order_id, stored.time_ms, stored.writer))
        return found

    def of_stream(self, stream: StreamState) -> list[StreamObjectInfo]:
        """Objects of this stream alone, in offset order."""
        ranges = self.ranges.get(stream.stream_id)
        found = []
        for start, end, holder in ranges.all(stream.end) if ranges is not None else ():
            if not holder & PLACES:
                object_id = ObjectId(holder >> PLACE_BITS)
                stored = self.by_id[object_id]
                info = StreamObjectInfo(object_id, stored.kind, stored.size_bytes, start, end, stored.writer)
                found.append(info)
        return found

    def prepared_before(self, now_ms: int, limit: int) -> list[ObjectId]:
        """Prepared objects whose deadline has passed, the oldest first."""
        return list(islice(_ids_until(self.deadlines, now_ms), limit))

    def doomed_before(self, time_ms: int, limit: int) -> list[ObjectId]:
        """Objects doomed at or before `time_ms`, the oldest first: whose files may be deleted, then RemoveObjects."""
        return list(islice(_ids_until(self.dooms, time_ms), limit))

    @property
    def committed_count(self) -> int:
        return len(self.by_id) - len(self.deadlines) - len(self.dooms)


NO_OBJECTS = Objects(
    SortedMap(), SortedMap(), SortedMap(), SortedMap(), SortedMap(), SortedMap(), SortedMap(), ObjectId(0), 0
)


def _ids_until(times: SortedMap[tuple[int, ObjectId], None], time_ms: int) -> Iterator[ObjectId]:
    for moment, object_id in times:
        if moment > time_ms:
            return
        yield object_id
