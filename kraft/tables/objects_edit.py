"""ObjectsEdit: records applied to the tables of objects, groups and ranges (objects.py).

Not here: decisions (kraft/commands/objects.py, kraft/commands/compaction.py). Kept true: what is said in
objects.py and stream_set_groups.py, after every record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from millrace.kraft.tables.objects import Objects, ObjectState, StoredObject
from millrace.kraft.tables.owed_ranges import OwedRange
from millrace.kraft.tables.packing import unpack_holders, unpack_ranges
from millrace.kraft.tables.ranges import LOST, OWED, SLOT_BITS, SLOTS, Holder, Span, StreamRanges
from millrace.kraft.tables.sorted_map import SortedMapEdit
from millrace.kraft.tables.stream_set_groups import GONE, Purpose, StreamSetGroup, in_group, ungrouped
from millrace.kraft.tables.streams import StreamsEdit, StreamState
from millrace.protocol.stream_records import (
    CommitObjectRecord,
    CommittedObjectRecord,
    CompactObjectsRecord,
    MadeObject,
    NextIdsRecord,
    PendingDeletionRecord,
    PrepareObjectsRecord,
    RemoveObjectsRecord,
    StreamHoldersRecord,
    StreamSetGroupRecord,
)
from millrace.runtime.scheduling.yielding import Yielding, run_to_end
from millrace.s3stream.ids import ObjectId, ObjectKind, StreamId

# How many objects or streams are looked at in one step: a millisecond or two.
STEP_COUNT = 32


def unpacked_ranges(packed: bytes) -> StreamRanges:
    """Of a StreamHoldersRecord."""
    pieces = list(unpack_holders(packed))
    return StreamRanges.of(*pieces[0]) if len(pieces) == 1 else StreamRanges.of_pieces(pieces)


class ObjectsEdit:
    def __init__(self, origin: Objects) -> None:
        self._by_id: SortedMapEdit[ObjectId, StoredObject] = origin.by_id.edit()
        self._ranges: SortedMapEdit[StreamId, StreamRanges] = origin.ranges.edit()
        self._groups: SortedMapEdit[int, StreamSetGroup] = origin.groups.edit()
        self._open_groups: SortedMapEdit[tuple[int, Purpose], int] = origin.open_groups.edit()
        self._sets: SortedMapEdit[tuple[int, int, ObjectId], None] = origin.sets.edit()
        self._deadlines: SortedMapEdit[tuple[int, ObjectId], None] = origin.deadlines.edit()
        self._pending_deletions: SortedMapEdit[tuple[int, ObjectId], None] = origin.pending_deletions.edit()
        self._next_id = origin.next_id
        self._committed_bytes = origin.committed_bytes
        self._named: dict[Holder, int] = {}  # by ranges of a snapshot, and not counted yet

    def done(self) -> Objects:
        self._count_named()
        return Objects(
            self._by_id.done(),
            self._ranges.done(),
            self._groups.done(),
            self._open_groups.done(),
            self._sets.done(),
            self._deadlines.done(),
            self._pending_deletions.done(),
            self._next_id,
            self._committed_bytes,
        )

    # Records of the log.

    def apply_prepare(self, record: PrepareObjectsRecord) -> None:
        stored = StoredObject(
            ObjectState.PREPARED, record.deadline_ms, node_id=record.node_id, writer=record.writer
        )
        for object_id in range(record.first_object_id, record.first_object_id + record.object_count):
            assert ObjectId(object_id) not in self._by_id, object_id
            self._by_id[ObjectId(object_id)] = stored
            self._deadlines[record.deadline_ms, ObjectId(object_id)] = None
        self._next_id = ObjectId(max(self._next_id, record.first_object_id + record.object_count))

    def apply_commit(self, record: CommitObjectRecord, streams: StreamsEdit) -> list[StreamId]:
        """Gives the streams of which it commits what was owed."""
        object_id = ObjectId(record.object_id)
        spans = list(unpack_ranges(record.ranges))
        self._place_object(record, record.node_id, Purpose.UPLOADS, spans)
        is_set = record.kind == ObjectKind.STREAM_SET
        holder = in_group(record.group_id, record.group_slot) if is_set else ungrouped(object_id)
        named = joined = 0
        settled: list[StreamId] = []
        for stream_id, start, end in spans:
            stream = streams.by_id.get(StreamId(stream_id))
            owed = streams.owed.by(StreamId(stream_id), record.node_id)
            if stream is not None and owed is not None and start == owed.start:
                streams.owed.commit(owed, end)
                self._fill(stream, (start, end, holder))
                settled.append(stream.stream_id)
                continue
            if stream is None or end <= stream.start:
                continue
            assert start == stream.end or stream.start == stream.end, (record, stream)
            is_new, is_named = self._extend(stream, holder)
            joined += is_new
            named += is_named
            streams.advance(stream.stream_id, end)
        self._count(object_id, named)
        if is_set:
            self._count_group(record.group_id, joined)
        if not self._by_id[object_id].alive:
            self._mark_for_deletion(object_id, record.time_ms, was_committed=True)
        return settled

    def apply_compaction(self, record: CompactObjectsRecord, streams: StreamsEdit) -> None:
        """Sources end with it, whatever they are still named for: who decided it has looked (`compact`)."""
        sources = frozenset((*record.replaced_ids, *record.superseded_ids, *record.linked_ids))
        lost, _ = run_to_end(self._apply_all_made(record, sources, streams))
        run_to_end(self._end_sources(record, sources, lost))

    def compact(
        self, record: CompactObjectsRecord, trimmed_ids: Iterable[int], streams: StreamsEdit
    ) -> Yielding[str]:
        """As apply_compaction, in steps, for who decides it: tells what of the sources is wanted and would
        now be in no object; "" when there is nothing.

        Exact for objects of one stream and for whole groups. Of a group that keeps other objects: every
        stream that a source has some of is in a made object, or passed over.
        """
        sources = frozenset((*record.replaced_ids, *record.superseded_ids, *record.linked_ids))
        before = {object_id: self._by_id[ObjectId(object_id)] for object_id in sorted(sources)}
        lost, of_made = yield from self._apply_all_made(record, sources, streams)
        accounted = yield from self._names_among(sources, dict.fromkeys((*of_made, *trimmed_ids)), streams)
        left = accounted if isinstance(accounted, str) else self._left_behind(sources, before, accounted)
        if not left:
            yield from self._end_sources(record, sources, lost)
        return left

    def _left_behind(
        self, sources: frozenset[int], before: dict[int, StoredObject], accounted: dict[int, int]
    ) -> str:
        for object_id, stored in before.items():
            alive = self._by_id[ObjectId(object_id)].alive
            if alive and (stored.group_id < 0 or self._is_emptied(stored.group_id, sources)):
                return f"object {object_id}"
            if alive > accounted.get(object_id, 0):
                return f"object {object_id}, {alive - accounted.get(object_id, 0)} streams"
        return ""

    def _end_sources(
        self, record: CompactObjectsRecord, sources: frozenset[int], lost: Iterable[Holder]
    ) -> Yielding[None]:
        others = [one for holder in lost for one in self._named_by(holder) if one not in sources]
        for number, object_id in enumerate(
            (*record.replaced_ids, *record.superseded_ids, *record.dropped_link_ids)
        ):
            if not number % STEP_COUNT:
                yield
            keeps_links = (
                len(record.replaced_ids) <= number < len(record.replaced_ids) + len(record.superseded_ids)
            )
            self._mark_for_deletion(
                ObjectId(object_id), record.time_ms, was_committed=True, keeps_links=keeps_links
            )
        for number, object_id in enumerate(record.linked_ids):
            if not number % STEP_COUNT:
                yield
            self._forget_state(ObjectId(object_id))
        # What shared a range with a source may have had nothing of what was left of it.
        for one in dict.fromkeys((*others, *(ObjectId(made.object_id) for made in record.made))):
            if not self._by_id[one].alive:
                self._mark_for_deletion(one, record.time_ms, was_committed=True)

    def apply_trim(self, stream: StreamState, end_before: int, time_ms: int) -> None:
        """`stream` as it is after the trim, `end_before` its end before."""
        ranges = self._ranges.get(stream.stream_id)
        if ranges is None:
            return
        rest, dropped = ranges.drop_below(stream.start, end_before)
        if rest is None:
            self._ranges.pop(stream.stream_id)
        elif dropped:
            self._ranges[stream.stream_id] = rest
        self._release(dropped, time_ms)

    def apply_owed(self, owed: OwedRange, streams: StreamsEdit) -> None:
        """The stream goes on with the range, which nothing in the store holds yet. In a snapshot its end and
        its holders have it already."""
        stream = streams.by_id[owed.stream_id]
        streams.owed.add(owed)
        if owed.end > stream.end:
            assert owed.start == stream.end, (owed, stream)
            self._extend(stream, OWED)
            streams.advance(owed.stream_id, owed.end)

    def apply_lost(self, owed: OwedRange, streams: StreamsEdit) -> None:
        """Nothing will hold the range."""
        streams.owed.remove(owed)
        self._fill(streams.by_id[owed.stream_id], (owed.start, owed.end, LOST))

    def apply_remove_stream(self, stream_id: StreamId, time_ms: int) -> None:
        ranges = self._ranges.pop(stream_id)
        if ranges is not None:
            self._release(ranges.holders(), time_ms)

    def apply_pending_deletion(self, record: PendingDeletionRecord) -> None:
        for object_id in record.object_ids:
            self._mark_for_deletion(
                ObjectId(object_id), record.time_ms, record.was_committed, with_links=record.with_links
            )

    def apply_remove(self, record: RemoveObjectsRecord) -> None:
        for object_id in record.object_ids:
            self._forget_state(ObjectId(object_id))

    def apply_next_ids(self, record: NextIdsRecord) -> None:
        self._next_id = ObjectId(max(self._next_id, record.next_object_id))

    # Records of snapshots.

    def apply_committed(self, record: CommittedObjectRecord) -> None:
        object_id = ObjectId(record.object_id)
        self._forget_state(object_id)  # a file that names an object twice names it once
        stored = StoredObject(
            ObjectState.COMMITTED,
            record.time_ms,
            ObjectKind(record.kind),
            record.size_bytes,
            record.node_id,
            writer=record.writer,
        )
        if stored.kind is ObjectKind.STREAM_SET:
            self._sets[record.node_id, record.order_id, object_id] = None
            home = record.order_id, record.group_id, record.group_slot
            self._by_id[object_id] = stored.in_group(*home)
        else:
            self._by_id[object_id] = stored.of_stream(
                record.stream_id, record.start_offset, record.end_offset
            )
        self._committed_bytes += record.size_bytes
        self._next_id = ObjectId(max(self._next_id, object_id + 1))

    def apply_group(self, record: StreamSetGroupRecord) -> None:
        group = StreamSetGroup(record.node_id, record.purpose, tuple(record.members))
        self._groups[record.group_id] = group
        if record.is_open:
            self._open_groups[record.node_id, Purpose(record.purpose)] = record.group_id

    def apply_holders(self, record: StreamHoldersRecord) -> None:
        self._put_ranges(StreamId(record.stream_id), unpacked_ranges(record.holders))

    def put_all_ranges(self, rows: Sequence[tuple[StreamId, StreamRanges]]) -> None:
        """As records of these, one after the other. Streams whose ranges are equal may share them: versions
        are immutable. Of an empty table, as a start fills it, in a few steps for all of them."""
        entries = dict(rows)
        if len(entries) < len(rows) or not self._ranges.gather(entries):
            for stream_id, ranges in rows:
                self._put_ranges(stream_id, ranges)
            return
        different = {id(ranges): ranges for ranges in entries.values()}
        for one, count in Counter(map(id, entries.values())).items():
            self._note_named(different[one], count)

    def _put_ranges(self, stream_id: StreamId, ranges: StreamRanges) -> None:
        before = self._ranges.get(stream_id)
        self._ranges[stream_id] = ranges
        self._note_named(ranges, 1)
        if before is not None:
            self._note_named(before, -1)

    def _note_named(self, ranges: StreamRanges, count: int) -> None:
        named = self._named
        for holder in ranges.holders():
            named[holder] = named.get(holder, 0) + count

    # Steps.

    def _place_object(
        self,
        record: CommitObjectRecord | MadeObject,
        node_id: int,
        purpose: Purpose,
        spans: list[tuple[int, int, int]],
    ) -> None:
        """The object becomes committed, and lies on its group; no range names it yet."""
        object_id = ObjectId(record.object_id)
        prepared = self._by_id.get(object_id)
        self._forget_state(object_id)
        stored = StoredObject(
            ObjectState.COMMITTED,
            record.time_ms,
            ObjectKind(record.kind),
            record.size_bytes,
            node_id,
            writer=0 if prepared is None else prepared.writer,
        )
        if stored.kind is ObjectKind.STREAM_SET:
            self._sets[node_id, record.order_id, object_id] = None
            self._join_group(record, node_id, purpose)
            stored = stored.in_group(record.order_id, record.group_id, record.group_slot)
        elif spans:
            stored = stored.of_stream(*spans[0])
        self._by_id[object_id] = stored
        self._committed_bytes += record.size_bytes
        self._next_id = ObjectId(max(self._next_id, object_id + 1))

    def _join_group(self, record: CommitObjectRecord | MadeObject, node_id: int, purpose: Purpose) -> None:
        group = self._groups.get(record.group_id) or StreamSetGroup(node_id, purpose, ())
        assert len(group.members) == record.group_slot, (record.object_id, group)
        group = group.joined(record.object_id)
        self._groups[record.group_id] = group
        self._open_groups[node_id, purpose] = record.group_id
        if group.is_full:
            self._open_groups.pop((node_id, purpose))

    def _extend(self, stream: StreamState, holder: Holder) -> tuple[bool, bool]:
        """The stream goes on with `holder`: whether that took a new range, and whether the object was not yet
        named there."""
        ranges = self._ranges.get(stream.stream_id)
        if ranges is None:
            self._ranges[stream.stream_id] = StreamRanges.of(stream.end, holder)
            return True, True
        last = ranges.last
        if last >> SLOT_BITS != holder >> SLOT_BITS:
            self._ranges[stream.stream_id] = ranges.append(stream.end, holder)
            return True, True
        if last | holder != last:
            self._ranges[stream.stream_id] = ranges.with_last(last | holder)
            return False, True
        return False, False

    def _fill(self, stream: StreamState, span: Span) -> None:
        """What was owed of the span has a holder now; what of it is trimmed is left to nobody."""
        if span[1] <= stream.start:
            return
        ranges, gone, come = self._ranges[stream.stream_id].filled(span, stream.end)
        rest, _ = ranges.drop_below(stream.start, stream.end)  # of what was owed, which names nobody
        assert rest is not None, (stream, span)
        self._ranges[stream.stream_id] = rest
        changes: dict[Holder, int] = {}
        for change, holders in ((1, come), (-1, gone)):
            for one in holders:
                changes[one] = changes.get(one, 0) + change
        for one, change in changes.items():
            self._name(one, change)

    def _apply_all_made(
        self, record: CompactObjectsRecord, sources: frozenset[int], streams: StreamsEdit
    ) -> Yielding[tuple[list[Holder], Iterable[int]]]:
        """Gives those that fewer ranges name, and the streams that are made. Counted once for all, since
        thousands of ranges change and a few sources are named by them."""
        changes: dict[Holder, int] = {}
        # by stream: a range may be cut by objects that are made for several parts of it
        spans: dict[int, list[Span]] = {}
        for number, made in enumerate(record.made):
            if not number % STEP_COUNT:
                yield
            holder = self._place_made(made, record.node_id)
            for index, (stream_id, start, end) in enumerate(unpack_ranges(made.ranges)):
                spans.setdefault(stream_id, []).append((start, end, holder))
                if not (index + 1) % (8 * STEP_COUNT):
                    yield
        without = self._without(sources)
        for number, (stream_id, parts) in enumerate(spans.items()):
            if not number % STEP_COUNT:
                yield
            self._replace(streams.by_id.get(StreamId(stream_id)), sorted(parts), without, changes)
        for number, (one, change) in enumerate(changes.items()):
            if not number % STEP_COUNT:
                yield
            self._name(one, change)
        return [one for one, change in changes.items() if change < 0], spans

    def _place_made(self, made: MadeObject, node_id: int) -> Holder:
        is_set = made.kind == ObjectKind.STREAM_SET
        self._place_object(
            made, node_id, Purpose.COMPACTION, [] if is_set else list(unpack_ranges(made.ranges))
        )
        if is_set:
            return in_group(made.group_id, made.group_slot)
        return ungrouped(ObjectId(made.object_id))

    def _replace(
        self,
        stream: StreamState | None,
        parts: list[Span],
        without: Callable[[Holder], Holder | None],
        changes: dict[Holder, int],
    ) -> None:
        """The made objects' parts of one stream, in order, those that are trimmed apart."""
        ranges = self._ranges.get(stream.stream_id) if stream is not None else None
        if stream is None or ranges is None:
            return
        wanted = [part for part in parts if part[1] > stream.start]
        if not wanted:
            return
        ranges, gone, come = ranges.replaced(wanted, stream.end, without)
        rest, dropped = ranges.drop_below(stream.start, stream.end)
        assert rest is not None, (stream, wanted)
        self._ranges[stream.stream_id] = rest
        for change, holders in ((1, come), (-1, gone), (-1, dropped)):
            for one in holders:
                changes[one] = changes.get(one, 0) + change

    def _without(self, sources: frozenset[int]) -> Callable[[Holder], Holder | None]:
        """For StreamRanges.replaced. What sources alone held keeps their name, so that it is noticed when
        nobody takes it over."""

        def without(holder: Holder) -> Holder | None:
            held_by, slots = holder >> SLOT_BITS, holder & SLOTS
            if not slots:
                return holder if held_by in sources else None
            group = self._groups[held_by]
            rest = touched = 0
            for slot, object_id in enumerate(group.members):
                if object_id in sources:
                    touched |= 1 << slot
                elif object_id != GONE:
                    rest |= 1 << slot
            if not slots & touched:
                return None
            return held_by << SLOT_BITS | slots & rest if slots & rest else holder

        return without

    def _names_among(
        self, sources: frozenset[int], stream_ids: Iterable[int], streams: StreamsEdit
    ) -> Yielding[dict[int, int] | str]:
        """How many ranges of these streams still name each source; or the range that sources alone hold."""
        counts: dict[int, int] = {}
        for number, stream_id in enumerate(stream_ids):
            if not number % STEP_COUNT:
                yield
            stream, ranges = streams.by_id.get(StreamId(stream_id)), self._ranges.get(StreamId(stream_id))
            for start, end, holder in (
                ranges.all(stream.end) if stream is not None and ranges is not None else ()
            ):
                if holder in (OWED, LOST):
                    continue
                named = self._named_by(holder)
                among = [object_id for object_id in named if object_id in sources]
                if len(among) == len(named):
                    return f"[{start}, {end}) of stream {stream_id}"
                for object_id in among:
                    counts[object_id] = counts.get(object_id, 0) + 1
        return counts

    def _is_emptied(self, group_id: int, sources: frozenset[int]) -> bool:
        """The group has nothing but sources."""
        return all(object_id == GONE or object_id in sources for object_id in self._groups[group_id].members)

    # Counting.

    def _count_named(self) -> None:
        """Once for all ranges of a snapshot: hundreds of thousands name a few hundred holders. Its records of
        objects and groups stand before those of holders, so until then nobody looks at a count."""
        named, self._named = self._named, {}
        for holder, change in named.items():
            self._name(holder, change)

    def _name(self, holder: Holder, change: int) -> None:
        """So many more ranges name this holder."""
        if holder & SLOTS:
            self._count_group(holder >> SLOT_BITS, change)
        for object_id in self._named_by(holder) if change else ():
            self._count(object_id, change)

    def _named_by(self, holder: Holder) -> list[ObjectId]:
        if not holder & SLOTS:
            return [] if holder in (OWED, LOST) else [ObjectId(holder >> SLOT_BITS)]
        group = self._groups.get(holder >> SLOT_BITS)
        return [] if group is None else list(group.at(holder & SLOTS))

    def _count(self, object_id: ObjectId, change: int) -> None:
        if change:
            stored = self._by_id[object_id]
            assert stored.alive + change >= 0, (object_id, stored)
            self._by_id[object_id] = stored._replace(alive=stored.alive + change)

    def _count_group(self, group_id: int, change: int) -> None:
        if change:
            group = self._groups[group_id]
            self._groups[group_id] = group._replace(range_count=group.range_count + change)

    def _release(self, holders: Iterable[Holder], time_ms: int) -> None:
        """Ranges are alive no longer: whom they named is marked for deletion when none names it any more."""
        for holder in holders:
            named = self._named_by(holder)
            if named and holder & SLOTS:
                self._count_group(holder >> SLOT_BITS, -1)
            for object_id in named:
                self._count(object_id, -1)
                if not self._by_id[object_id].alive:
                    self._mark_for_deletion(object_id, time_ms, was_committed=True)

    def _mark_for_deletion(
        self,
        object_id: ObjectId,
        time_ms: int,
        was_committed: bool,
        keeps_links: bool = False,
        with_links: bool = False,
    ) -> None:
        """A composite goes with what it links, unless it `keeps_links`. `with_links`: a snapshot says so of
        one whose kind is forgotten."""
        stored = self._by_id.get(object_id)
        with_links = with_links or (
            stored is not None and stored.kind is ObjectKind.COMPOSITE and not keeps_links
        )
        self._forget_state(object_id)
        self._by_id[object_id] = StoredObject(
            ObjectState.PENDING_DELETION, time_ms, was_committed=was_committed, with_links=with_links
        )
        self._pending_deletions[time_ms, object_id] = None
        self._next_id = ObjectId(max(self._next_id, object_id + 1))

    def _forget_state(self, object_id: ObjectId) -> None:
        stored = self._by_id.pop(object_id)
        if stored is None:
            return
        if stored.state is ObjectState.PREPARED:
            self._deadlines.pop((stored.time_ms, object_id))
        elif stored.state is ObjectState.PENDING_DELETION:
            self._pending_deletions.pop((stored.time_ms, object_id))
        else:
            self._committed_bytes -= stored.size_bytes
            if stored.kind is ObjectKind.STREAM_SET:
                self._sets.pop((stored.node_id, stored.order_id, object_id))
                self._leave_group(stored)

    def _leave_group(self, stored: StoredObject) -> None:
        group = self._groups.get(stored.group_id)
        if group is None:
            return
        rest = group.left(stored.slot)
        if rest is not None:
            self._groups[stored.group_id] = rest
            return
        self._groups.pop(stored.group_id)
        key = group.node_id, Purpose(group.purpose)
        if self._open_groups.get(key) == stored.group_id:
            self._open_groups.pop(key)
