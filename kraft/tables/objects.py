"""Objects in the store: prepared, committed, doomed; and for every stream the committed objects that hold it.

    prepared --CommitObject--> committed --its last range dies--> doomed --file deleted--> gone
            `-------------- the deadline passed, or nothing in it was alive -------^

Compaction dooms its sources too; one that a new composite links is forgotten and its file stays.

A range is alive while its stream exists and starts below the range's end. Each committed object counts its ranges that
are alive, so that a trim or a deletion dooms what it empties in the same commit, without looking at anything else.

Not here: commands (object_commands.py). Kept true: an id is in exactly one state; an object's count equals its ranges in
the columns of `ranges`; a committed object has at least one; ids are given once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

from millrace.kraft.sorted_map import SortedMap, SortedMapEdit
from millrace.kraft.tables.ranges import StreamRanges
from millrace.kraft.tables.streams import StreamsEdit
from millrace.protocol.stream_records import (
    CommitObjectRecord,
    CompactObjectsRecord,
    DoomObjectsRecord,
    MadeObject,
    NextIdsRecord,
    PrepareObjectsRecord,
    RemoveObjectsRecord,
)
from millrace.s3stream.ids import ObjectId, ObjectInfo, ObjectKind, StreamId, StreamObjectInfo, StreamSetInfo

RANGE = struct.Struct(">qqq")


class ObjectState(IntEnum):
    PREPARED = 0
    COMMITTED = 1
    DOOMED = 2


class StoredObject(NamedTuple):
    state: ObjectState
    time_ms: int  # prepared: the deadline; committed: when; doomed: since when
    kind: ObjectKind = ObjectKind.STREAM_SET
    size_bytes: int = 0
    order_id: int = 0
    ranges: bytes = b""  # as CommitObjectRecord has them, the dead included
    alive: int = 0  # ranges that are
    node_id: int = -1  # by whom it was prepared, and written
    was_committed: bool = False  # doomed: a retry of its commit is a success
    is_deep: bool = False  # doomed: a composite whose links go with it


@dataclass(frozen=True, slots=True)
class Objects:
    by_id: SortedMap[ObjectId, StoredObject]
    ranges: SortedMap[StreamId, StreamRanges]
    deadlines: SortedMap[tuple[int, ObjectId], None]  # of the prepared
    dooms: SortedMap[tuple[int, ObjectId], None]  # of the doomed, by time
    next_id: ObjectId
    committed_bytes: int

    def get(self, object_id: int) -> StoredObject | None:
        return self.by_id.get(ObjectId(object_id))

    def find(self, stream_id: StreamId, start: int, end: int, limit: int) -> list[ObjectInfo]:
        """Committed objects that hold parts of [start, end), continuous from the one holding `start`; see ObjectCatalog."""
        ranges = self.ranges.get(stream_id)
        if ranges is None:
            return []
        found = []
        for first, last, object_id in ranges.find(start, end, limit):
            stored = self.by_id[object_id]
            found.append(ObjectInfo(object_id, stored.kind, stored.size_bytes, first, last))
        return found

    def stream_sets(self, node_id: int) -> list[StreamSetInfo]:
        """The committed stream-set objects that this node wrote, newest data last."""
        found = [
            StreamSetInfo(object_id, stored.size_bytes, stored.order_id, stored.time_ms)
            for object_id, stored in self.by_id.items()
            if stored.state is ObjectState.COMMITTED
            and stored.kind is ObjectKind.STREAM_SET
            and stored.node_id == node_id
        ]
        return sorted(found, key=lambda info: (info.order_id, info.object_id))

    def of_stream(self, stream_id: StreamId) -> list[StreamObjectInfo]:
        """Objects of this stream alone, in offset order."""
        found = []
        for start, end, object_id in self.ranges.get(stream_id) or ():
            stored = self.by_id[object_id]
            if stored.kind is not ObjectKind.STREAM_SET:
                found.append(StreamObjectInfo(object_id, stored.kind, stored.size_bytes, start, end))
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


NO_OBJECTS = Objects(SortedMap(), SortedMap(), SortedMap(), SortedMap(), ObjectId(0), 0)


def _ids_until(times: SortedMap[tuple[int, ObjectId], None], time_ms: int) -> Iterator[ObjectId]:
    for moment, object_id in times:
        if moment > time_ms:
            return
        yield object_id


class ObjectsEdit:
    def __init__(self, origin: Objects) -> None:
        self._by_id: SortedMapEdit[ObjectId, StoredObject] = origin.by_id.edit()
        self._ranges: SortedMapEdit[StreamId, StreamRanges] = origin.ranges.edit()
        self._deadlines: SortedMapEdit[tuple[int, ObjectId], None] = origin.deadlines.edit()
        self._dooms: SortedMapEdit[tuple[int, ObjectId], None] = origin.dooms.edit()
        self._next_id = origin.next_id
        self._committed_bytes = origin.committed_bytes

    def done(self) -> Objects:
        return Objects(
            self._by_id.done(),
            self._ranges.done(),
            self._deadlines.done(),
            self._dooms.done(),
            self._next_id,
            self._committed_bytes,
        )

    def apply_prepare(self, record: PrepareObjectsRecord) -> None:
        stored = StoredObject(ObjectState.PREPARED, record.deadline_ms, node_id=record.node_id)
        for object_id in range(record.first_object_id, record.first_object_id + record.object_count):
            assert ObjectId(object_id) not in self._by_id, object_id
            self._by_id[ObjectId(object_id)] = stored
            self._deadlines[record.deadline_ms, ObjectId(object_id)] = None
        self._next_id = ObjectId(max(self._next_id, record.first_object_id + record.object_count))

    def apply_commit(self, record: CommitObjectRecord, streams: StreamsEdit) -> None:
        """Also what a snapshot is loaded with: streams then stand where they stood, and nothing was prepared."""
        object_id = ObjectId(record.object_id)
        self._forget_state(object_id)
        alive = 0
        for stream_id, start, end in RANGE.iter_unpack(record.ranges):
            stream = streams.by_id.get(stream_id)
            if stream is None or end <= stream.start:
                continue
            alive += 1
            ranges = self._ranges.get(stream_id)
            new = StreamRanges.of(start, end, object_id) if ranges is None else ranges.add(start, end, object_id)
            self._ranges[stream_id] = new
            streams.advance(stream_id, end)
        self._by_id[object_id] = StoredObject(
            ObjectState.COMMITTED,
            record.time_ms,
            ObjectKind(record.kind),
            record.size_bytes,
            record.order_id,
            record.ranges,
            alive,
            record.node_id,
        )
        self._committed_bytes += record.size_bytes
        self._next_id = ObjectId(max(self._next_id, object_id + 1))
        if not alive:
            self._doom(object_id, record.time_ms, was_committed=True)

    def apply_compaction(self, record: CompactObjectsRecord, streams: StreamsEdit) -> list[ObjectId]:
        """Gives the sources of which something wanted is left in no object: the controller decides no record for which there are any."""
        sources = dict.fromkeys((*record.replaced_ids, *record.superseded_ids, *record.linked_ids))
        for made in record.made:
            self._apply_made(made, record, sources, streams)
        left = [ObjectId(object_id) for object_id in sources if self._by_id[ObjectId(object_id)].alive]
        for object_id in record.replaced_ids:
            self._doom(ObjectId(object_id), record.time_ms, was_committed=True)
        for object_id in record.superseded_ids:
            self._doom(ObjectId(object_id), record.time_ms, was_committed=True, keeps_links=True)
        for object_id in record.linked_ids:
            self._forget_state(ObjectId(object_id))
        for object_id in record.dropped_link_ids:
            self._doom(ObjectId(object_id), record.time_ms, was_committed=True)
        for made in record.made:
            if not self._by_id[ObjectId(made.object_id)].alive:
                self._doom(ObjectId(made.object_id), record.time_ms, was_committed=True)
        return left

    def _apply_made(
        self, made: MadeObject, record: CompactObjectsRecord, sources: dict[int, None], streams: StreamsEdit
    ) -> None:
        object_id = ObjectId(made.object_id)
        self._forget_state(object_id)
        kind = ObjectKind(made.kind)
        self._by_id[object_id] = StoredObject(
            ObjectState.COMMITTED, made.time_ms, kind, made.size_bytes, made.order_id, made.ranges, 0, record.node_id
        )
        self._committed_bytes += made.size_bytes
        self._next_id = ObjectId(max(self._next_id, object_id + 1))
        for stream_id, start, end in RANGE.iter_unpack(made.ranges):
            stream, ranges = streams.by_id.get(stream_id), self._ranges.get(stream_id)
            if stream is None or ranges is None or end <= stream.start:
                continue
            ranges, gone, come = ranges.replaced(start, end, object_id, sources)
            rest, dropped = ranges.drop_below(stream.start)
            assert rest is not None, (stream, made)
            self._ranges[stream_id] = rest
            for change, holders in ((1, come), (-1, gone), (-1, dropped)):
                for holder in holders:
                    stored = self._by_id[holder]
                    self._by_id[holder] = stored._replace(alive=stored.alive + change)

    def apply_trim(self, stream_id: StreamId, start: int, time_ms: int) -> None:
        """Called once the stream itself was trimmed."""
        ranges = self._ranges.get(stream_id)
        if ranges is None:
            return
        rest, dropped = ranges.drop_below(start)
        if rest is None:
            self._ranges.pop(stream_id)
        elif dropped:
            self._ranges[stream_id] = rest
        self._release(dropped, time_ms)

    def apply_remove_stream(self, stream_id: StreamId, time_ms: int) -> None:
        ranges = self._ranges.pop(stream_id)
        if ranges is not None:
            self._release((object_id for _, _, object_id in ranges), time_ms)

    def apply_doom(self, record: DoomObjectsRecord) -> None:
        for object_id in record.object_ids:
            self._doom(ObjectId(object_id), record.time_ms, record.was_committed, is_deep=record.is_deep)

    def apply_remove(self, record: RemoveObjectsRecord) -> None:
        for object_id in record.object_ids:
            self._forget_state(ObjectId(object_id))

    def apply_next_ids(self, record: NextIdsRecord) -> None:
        self._next_id = ObjectId(max(self._next_id, record.next_object_id))

    def _release(self, object_ids: Iterable[ObjectId], time_ms: int) -> None:
        """One range of each (an object may be named several times) is alive no longer."""
        for object_id in object_ids:
            stored = self._by_id[object_id]
            assert stored.alive > 0, (object_id, stored)
            if stored.alive == 1:
                self._doom(object_id, time_ms, was_committed=True)
            else:
                self._by_id[object_id] = stored._replace(alive=stored.alive - 1)

    def _doom(
        self,
        object_id: ObjectId,
        time_ms: int,
        was_committed: bool,
        keeps_links: bool = False,
        is_deep: bool = False,
    ) -> None:
        """A composite goes with what it links, unless it `keeps_links`. `is_deep`: a snapshot says so of one whose kind is forgotten."""
        stored = self._by_id.get(object_id)
        is_deep = is_deep or (stored is not None and stored.kind is ObjectKind.COMPOSITE and not keeps_links)
        self._forget_state(object_id)
        self._by_id[object_id] = StoredObject(ObjectState.DOOMED, time_ms, was_committed=was_committed, is_deep=is_deep)
        self._dooms[time_ms, object_id] = None
        self._next_id = ObjectId(max(self._next_id, object_id + 1))

    def _forget_state(self, object_id: ObjectId) -> None:
        stored = self._by_id.pop(object_id)
        if stored is None:
            return
        if stored.state is ObjectState.PREPARED:
            self._deadlines.pop((stored.time_ms, object_id))
        elif stored.state is ObjectState.DOOMED:
            self._dooms.pop((stored.time_ms, object_id))
        else:
            self._committed_bytes -= stored.size_bytes
