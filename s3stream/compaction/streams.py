"""Compaction of the objects of each stream that is open here: what is dead goes, small ones are merged, large
ones linked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import field
from functools import partial

from millrace.protocol.dataclass import dataclass
from millrace.runtime.scheduling.yielding import Yielding
from millrace.s3stream.compaction.batch import Batch
from millrace.s3stream.compaction.merging import merge, stream_object
from millrace.s3stream.compaction.outputs import WrittenObject
from millrace.s3stream.compaction.plan import Bounds, SetPlan, SourceIndex, plan_sets, streams_of
from millrace.s3stream.compaction.sources import UNREADABLE, ReadMemory, SourceUnreadable
from millrace.s3stream.compaction.stream_plan import LINKS_COUNT_MAX, Objects, plan_stream
from millrace.s3stream.compaction.work import Work
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import (
    NO_OBJECT,
    CompactionCommit,
    ObjectId,
    ObjectKind,
    StreamBounds,
    StreamId,
    StreamObjectInfo,
    StreamRange,
)
from millrace.s3stream.objects.composite import CompositeIndex, LinkedRows, encode_composite
from millrace.s3stream.objects.placing import put_object

KNOWN_MAX = 10_000


@dataclass(slots=True)
class Linking:
    """What becomes of a group whose objects are linked."""

    kept: list[LinkedRows] = field(default_factory=list)
    compacted: list[ObjectId] = field(default_factory=list)  # stream objects that hold nothing wanted
    superseded: list[ObjectId] = field(default_factory=list)
    linked: list[ObjectId] = field(default_factory=list)
    dropped: list[ObjectId] = field(default_factory=list)


class StreamCompactor:
    def __init__(self, work: Work) -> None:
        self._work = work
        # Composites that looked mostly dead and were not: the offset up to which a look is not worth it.
        self._alive_until: dict[ObjectId, int] = {}

    async def round(self) -> bool:
        """False when the objects of a stream were left as they are, for metadata had moved on; others are not
        kept from theirs."""
        self._work.counts.stream_rounds += 1
        batch = Batch(self._work)
        try:
            for stream_id in list(self._work.catalog.open_streams()):
                await self._compact(stream_id, batch)
                await asyncio.sleep(0)
        except Exception:
            await batch.flush()  # the store may be away: what was put before is good
            raise
        await batch.flush()
        return batch.is_done

    async def _compact(self, stream_id: StreamId, batch: Batch) -> None:
        work = self._work
        listed = {
            one.object_id: one for one in work.catalog.stream_objects(stream_id)
        }  # each once, whatever metadata says
        objects = [one for one in listed.values() if not work.is_quarantined(one.object_id)]
        bounds = work.catalog.stream_bounds([stream_id]).get(stream_id)
        if bounds is None or not objects:
            return
        plan = plan_stream(objects, bounds, work.settings)
        if plan.dead:
            await batch.commit(None, CompactionCommit(NO_OBJECT, 0, (), (), plan.dead))
        for group in plan.merges:
            await merge(work, group, partial(self._plan_merge, stream_id, group), batch)
        for group in plan.links:
            try:
                await self._link(stream_id, group, bounds, batch)
            except SourceUnreadable as error:
                work.note(error)
                if error.is_away:
                    raise error.cause from None

    def _plan_merge(
        self, stream_id: StreamId, group: Objects, sources: Sequence[SourceIndex], bounds: Bounds
    ) -> Yielding[SetPlan | None]:
        """All of it in one object. An object that does not hold what metadata says of it is quarantined."""
        for source, one in zip(sources, group, strict=True):
            first, last = source.index.row(0), source.index.row(source.index.count - 1)
            if streams_of([source]) != [stream_id] or not first.start <= one.start < one.end <= last.end:
                raise SourceUnreadable(
                    one.object_id, ObjectCorrupt(f"it is not [{one.start}, {one.end}) of {stream_id}")
                )
        plan = yield from plan_sets(sources, bounds, self._work.settings, split_bytes=0)
        return plan if plan is not None and len(plan.portions) <= 1 else None

    async def _link(self, stream_id: StreamId, group: Objects, bounds: StreamBounds, batch: Batch) -> None:
        work = self._work
        if len(group) == 1 and bounds.start < self._alive_until.get(group[0].object_id, 0):
            return
        linking = Linking()
        for one in group:
            if not await self._add(linking, one, bounds.start):
                return
        if len(group) == 1 and not linking.dropped:
            self._remember(group[0].object_id, linking.kept[0].link.end)
            return
        if len(linking.kept) > LINKS_COUNT_MAX:
            error = ValueError(f"{len(linking.kept)} links in one composite")
            work.quarantine([one.object_id for one in group], "too many links", error)
            return
        await self._commit(stream_id, linking, batch)

    async def _add(self, linking: Linking, one: StreamObjectInfo, start: int) -> bool:
        """False for one that does not begin where the one before it ends, which then is quarantined."""
        links = await self._links_of(one)
        first, last = links[0].link, links[-1].link
        if not first.start <= one.start < one.end <= last.end:
            found = f"it holds [{first.start}, {last.end}), not [{one.start}, {one.end})"
            raise SourceUnreadable(one.object_id, ObjectCorrupt(found))
        alive = [linked for linked in links if linked.link.end > start]
        if alive and linking.kept and alive[0].link.start != linking.kept[-1].link.end:
            found = (
                f"it begins at {alive[0].link.start}, and the one before it ends at "
                f"{linking.kept[-1].link.end}"
            )
            self._work.quarantine([one.object_id], "overlap", ValueError(found))
            return False
        linking.kept += alive
        if one.kind is ObjectKind.COMPOSITE and alive:
            linking.superseded.append(one.object_id)
            linking.dropped += [linked.object_id for linked in links if linked.link.end <= start]
        elif alive:
            linking.linked.append(one.object_id)
        else:
            linking.compacted.append(one.object_id)
        return True

    async def _links_of(self, one: StreamObjectInfo) -> list[LinkedRows]:
        work = self._work
        if one.kind is ObjectKind.COMPOSITE:
            try:
                data = memoryview(await work.store.get(work.key(one.object_id)))
                work.counts.gets += 1
                work.counts.read_bytes += len(data)
                return CompositeIndex(data, one.writer).linked()
            except UNREADABLE as error:
                raise SourceUnreadable(one.object_id, error) from None
        known = work.known_rows.get(one.object_id)
        if known is not None:
            return [LinkedRows(one.object_id, one.size_bytes, memoryview(known), one.writer)]
        source = work.source(one.object_id, one.size_bytes, one.writer)
        try:
            found = await source.open(ReadMemory(0), 0)
        finally:
            await source.close()
        return [LinkedRows(one.object_id, one.size_bytes, found.index.encoded, one.writer)]

    async def _commit(self, stream_id: StreamId, linking: Linking, batch: Batch) -> None:
        work = self._work
        if not linking.kept:
            await batch.commit(None, CompactionCommit(NO_OBJECT, 0, (), (), tuple(linking.compacted)))
            return
        data = encode_composite(linking.kept, work.ownership.writer)
        ids = await batch.ids(1)
        await put_object(work.store, work.ownership, work.key(ids.first), [data])
        work.counts.puts += 1
        work.counts.written_bytes += len(data)
        work.counts.composites += 1
        span = StreamRange(stream_id, linking.kept[0].link.start, linking.kept[-1].link.end)
        made = WrittenObject(ids.first, sum(linked.size_bytes for linked in linking.kept), (span,), b"")
        made_commit = CompactionCommit(
            NO_OBJECT,
            0,
            (),
            (stream_object(made, ObjectKind.COMPOSITE),),
            tuple(linking.compacted),
            tuple(linking.superseded),
            tuple(linking.linked),
            tuple(linking.dropped),
        )
        await batch.commit(ids, made_commit)

    def _remember(self, object_id: ObjectId, offset: int) -> None:
        if len(self._alive_until) >= KNOWN_MAX:
            self._alive_until.clear()
        self._alive_until[object_id] = offset
