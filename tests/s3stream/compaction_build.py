"""What tests of compaction stand on: the catalog of build.py with the controller's rules for compaction, and
what deletes files.

The catalog refuses as the controller does: a source that is not committed, an id that is not prepared, a link
that nothing links, and whatever would leave something that is wanted in no object. `check_files` says that
what is committed is there, and that nothing else is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.runtime.rand import Rand
from millrace.s3stream.block_cache import BlockCache
from millrace.s3stream.compaction.config import MIB, CompactionSettings
from millrace.s3stream.compaction.run import Compactor
from millrace.s3stream.compaction.sets import SetCompactor
from millrace.s3stream.compaction.streams import StreamCompactor
from millrace.s3stream.compaction.work import Work
from millrace.s3stream.config import StreamSettings
from millrace.s3stream.errors import CompactionRefused, StreamFenced
from millrace.s3stream.ids import (
    NO_OBJECT,
    CommittedStreamObject,
    CompactionCommit,
    ObjectHint,
    ObjectId,
    ObjectKind,
    StreamBounds,
    StreamId,
    StreamObjectInfo,
    StreamRange,
    StreamSetInfo,
    UploadCommit,
)
from millrace.s3stream.objects.composite import links_of
from millrace.s3stream.objects.format import Entry
from millrace.s3stream.objects.keys import object_key, parse_object_key
from millrace.s3stream.objects.writer import ObjectWriter
from millrace.s3stream.read_accumulator import ReadAccumulator
from millrace.s3stream.traffic import EngineStores
from tests.s3stream.build import CLUSTER_ID, MemoryCatalog, MemoryStore, World

TTL_UPLOAD_MS = 3_600_000


@dataclass
class LiveObject:
    """A committed object as the catalog knows it; `ranges` are what it held when it was committed."""

    kind: ObjectKind
    size_bytes: int
    order_id: int
    data_time_ms: int
    ranges: list[StreamRange] = field(default_factory=list)


class SteppedClock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def wall_ms(self) -> int:
        return self.ms

    def asleep_ms(self) -> int:
        return 0

    def elapsed_ms(self) -> int:
        return 0


class CompactingCatalog(MemoryCatalog):
    def __init__(self, clock: SteppedClock) -> None:
        super().__init__()
        self.clock = clock
        self.live: dict[ObjectId, LiveObject] = {}
        self.pending_deletions: dict[ObjectId, bool] = {}  # whether its links go with it
        self.was_committed: dict[ObjectId, None] = {}
        self.compactions: list[CompactionCommit] = []
        self.deadlines: dict[ObjectId, int] = {}
        self.is_fenced = False

    # -- what the engine asks, with what compaction must know of it

    async def prepare(self, count: int, ttl_ms: int) -> ObjectId:
        first = await super().prepare(count, ttl_ms)
        for object_id in range(first, first + count):
            self.deadlines[ObjectId(object_id)] = self.clock.ms + ttl_ms
        return first

    def _apply(self, commit: UploadCommit, ids: list[ObjectId]) -> None:
        super()._apply(commit, ids)
        if commit.object_id != NO_OBJECT:
            order, ranges = commit.object_id, list(commit.ranges)
            self._add(
                commit.object_id,
                LiveObject(ObjectKind.STREAM_SET, commit.size_bytes, order, self.clock.ms, ranges),
            )
        for made in commit.stream_objects:
            order = made.object_id
            self._add(
                made.object_id,
                LiveObject(ObjectKind.STREAM, made.size_bytes, order, self.clock.ms, [made.range]),
            )

    def _add(self, object_id: ObjectId, found: LiveObject) -> None:
        self.live[object_id] = found
        self.was_committed[object_id] = None
        del self.deadlines[object_id]

    async def trim(self, stream_id: StreamId, epoch: int, new_start: int) -> None:
        await super().trim(stream_id, epoch, new_start)
        self.mark_emptied()

    def delete(self, stream_id: int) -> None:
        super().delete(stream_id)
        self.mark_emptied()

    def mark_emptied(self) -> None:
        """Objects of one stream go with their last offset; stream-set objects only by compaction."""
        for object_id, found in list(self.live.items()):
            if found.kind is not ObjectKind.STREAM_SET and not any(
                self._wanted(span) for span in found.ranges
            ):
                self._mark_for_deletion(object_id, with_links=True)

    # -- what compaction asks

    def stream_set_objects(self) -> Sequence[StreamSetInfo]:
        sets = [(key, one) for key, one in self.live.items() if one.kind is ObjectKind.STREAM_SET]
        sets.sort(key=lambda pair: pair[1].order_id)
        return [StreamSetInfo(key, one.size_bytes, one.order_id, one.data_time_ms) for key, one in sets]

    def stream_objects(self, stream_id: StreamId) -> Sequence[StreamObjectInfo]:
        stream = self.streams.get(stream_id)
        return [
            StreamObjectInfo(hint.object_id, hint.kind, hint.size_bytes, hint.start, hint.end)
            for hint in (stream.objects if stream else [])
            if hint.kind is not ObjectKind.STREAM_SET
        ]

    def open_streams(self) -> Sequence[StreamId]:
        return [StreamId(key) for key, stream in self.streams.items() if stream.is_open]

    def stream_bounds(self, stream_ids: Sequence[StreamId]) -> Mapping[StreamId, StreamBounds]:
        found = {key: self.streams[key] for key in stream_ids if key in self.streams}
        return {key: StreamBounds(stream.start, stream.end) for key, stream in found.items()}

    async def commit_compaction(self, commit: CompactionCommit) -> None:
        await self._meet("commit_compaction")
        if self.is_fenced:
            raise StreamFenced(-1, 1)
        if not self._is_done(commit):
            self._refuse_wrong(commit)
            self._replace(commit)
            self.compactions.append(commit)
        self.after_commit()

    # -- rules

    def _made(self, commit: CompactionCommit) -> list[ObjectId]:
        made = [one.object_id for one in commit.stream_objects]
        return made if commit.object_id == NO_OBJECT else [commit.object_id, *made]

    def _sources(self, commit: CompactionCommit) -> list[ObjectId]:
        return [*commit.compacted_ids, *commit.superseded_ids, *commit.linked_ids]

    def _is_done(self, commit: CompactionCommit) -> bool:
        made = self._made(commit)
        if made:
            return all(key in self.was_committed for key in made)
        return not any(key in self.live for key in self._sources(commit))

    def _refuse_wrong(self, commit: CompactionCommit) -> None:
        sources = self._sources(commit)
        assert sources
        assert len(set(sources)) == len(sources)
        for key in sources:
            if key not in self.was_committed:
                raise CompactionRefused(f"object {key} was never committed")
        for key in self._made(commit):
            if key not in self.prepared or self.deadlines[key] < self.clock.ms:
                raise CompactionRefused(f"object {key} is not prepared")
        spans = [*commit.ranges, *(one.range for one in commit.stream_objects)]
        alive = [key for key in sources if key in self.live]
        if not alive:
            raise CompactionRefused(f"objects {sources} hold nothing any more")
        for key in alive:
            self._refuse_lost(key, spans)
        for key in commit.superseded_ids:
            assert key not in self.live or self.live[key].kind is ObjectKind.COMPOSITE
        composites = [one.range for one in commit.stream_objects if one.kind is ObjectKind.COMPOSITE]
        for key in commit.linked_ids:
            assert key not in self.live or self.live[key].kind is ObjectKind.STREAM
            if key in self.live:
                self._refuse_lost(key, composites)
        for key in commit.dropped_link_ids:
            assert key not in self.live

    def _refuse_lost(self, key: ObjectId, spans: Sequence[StreamRange]) -> None:
        by_stream: dict[StreamId, list[StreamRange]] = {}
        for span in sorted(spans, key=lambda span: span.start):
            by_stream.setdefault(span.stream_id, []).append(span)
        for held in self.live[key].ranges:
            wanted = self._wanted(held)
            if wanted is None:
                continue
            offset = wanted.start
            for span in by_stream.get(held.stream_id, []):
                if span.start <= offset < span.end:
                    offset = span.end
            if offset < wanted.end:
                raise CompactionRefused(
                    f"stream {held.stream_id} at {offset} of object {key} would be in no object"
                )

    def _wanted(self, span: StreamRange) -> StreamRange | None:
        stream = self.streams.get(span.stream_id)
        if stream is None or span.end <= stream.start:
            return None
        return StreamRange(span.stream_id, max(span.start, stream.start), span.end)

    def _replace(self, commit: CompactionCommit) -> None:
        sources = [self.live[key] for key in self._sources(commit) if key in self.live]
        order, age = min(one.order_id for one in sources), min(one.data_time_ms for one in sources)
        for key in self._sources(commit):
            if key in self.live and key not in commit.linked_ids:
                self._mark_for_deletion(key, with_links=key in commit.compacted_ids)
            self.live.pop(key, None)
        for key in commit.dropped_link_ids:
            self.pending_deletions[key] = False
        gone = frozenset(self._sources(commit))
        for stream in self.streams.values():
            stream.objects = [hint for hint in stream.objects if hint.object_id not in gone]
        made = [(one.object_id, one.kind, one.size_bytes, [one.range]) for one in commit.stream_objects]
        if commit.object_id != NO_OBJECT:
            made.append((commit.object_id, ObjectKind.STREAM_SET, commit.size_bytes, list(commit.ranges)))
        for key, kind, size_bytes, ranges in made:
            del self.prepared[key]
            self._add(key, LiveObject(kind, size_bytes, order, age, ranges))
            for span in ranges:
                if self._wanted(span) is not None:
                    stream = self.streams[span.stream_id]
                    stream.objects.append(ObjectHint(key, kind, size_bytes, span.start, span.end))
                    stream.objects.sort(key=lambda hint: hint.start)
        self.mark_emptied()

    def _mark_for_deletion(self, object_id: ObjectId, *, with_links: bool) -> None:
        found = self.live.pop(object_id)
        self.pending_deletions[object_id] = with_links and found.kind is ObjectKind.COMPOSITE
        for stream in self.streams.values():
            stream.objects = [hint for hint in stream.objects if hint.object_id != object_id]


class CompactedWorld(World):
    """A world whose catalog knows compaction; `work` is what a compaction of it is given."""

    def __init__(self, settings: dict[str, int] | None = None, **compaction: int) -> None:
        super().__init__(settings=settings)
        self.clock = SteppedClock()
        self.catalog: CompactingCatalog = CompactingCatalog(self.clock)
        values = {"split_bytes": 64 << 10, "memory_bytes": 8 * MIB, "run_count_min": 4, **compaction}
        self.compaction = CompactionSettings(**values)
        self.work = Work(self.store, self.catalog, self.compaction, CLUSTER_ID, self.clock)
        self.is_full = False  # uploads wait for room

    def compactor(self, begin_at_s: float = 0.0) -> Compactor:
        return Compactor(self.work, Rand(b"compaction"), lambda: self.is_full, begin_at_s)

    async def compact(self) -> None:
        """A round of each kind."""
        await SetCompactor(self.work).round()
        await StreamCompactor(self.work).round()

    # -- objects without an engine

    async def upload(self, *pieces: tuple[int, Sequence[bytes]], is_split: bool = False) -> ObjectId:
        """A committed stream-set object (or objects of their own) of entries of one offset each: (stream,
        payloads)."""
        writer = ObjectWriter(16 << 10)
        for stream_id, payloads in sorted(pieces):
            if stream_id not in self.catalog.streams:
                self.catalog.open(stream_id)
            end = self.catalog.streams[stream_id].end
            writer.add(stream_id, [Entry(end + n, 1, memoryview(one)) for n, one in enumerate(payloads)])
        finished = writer.finish()
        object_id = await self.catalog.prepare(1, TTL_UPLOAD_MS)
        self.store.objects[object_key(CLUSTER_ID, object_id)] = b"".join(finished.parts)
        made: tuple[Any, ...] = ()
        if is_split:
            (span,) = finished.ranges
            made = (CommittedStreamObject(object_id, finished.size_bytes, span),)
            await self.catalog.commit_upload(UploadCommit(NO_OBJECT, 0, (), made))
        else:
            await self.catalog.commit_upload(
                UploadCommit(object_id, finished.size_bytes, finished.ranges, ())
            )
        return object_id

    async def read(self, stream_id: int) -> list[bytes]:
        """All that is wanted of a stream, by a reader with empty caches."""
        stream = self.catalog.streams[stream_id]
        stores = EngineStores.same(self.store)
        cache = BlockCache(stores, self.catalog, StreamSettings(block_cache_bytes=MIB), CLUSTER_ID)
        found: list[bytes] = []
        offset = stream.start
        while offset < stream.end:
            accumulator = ReadAccumulator(stream_id, offset, stream.end, MIB)
            await cache.read(accumulator)
            found += [bytes(entry.data) for entry in accumulator.entries]
            offset = accumulator.next_offset
        await cache.close()
        return found

    def key(self, object_id: int) -> str:
        return object_key(CLUSTER_ID, ObjectId(object_id))

    def kinds(self) -> str:
        """Committed objects as a test reads them: sets, stream objects, composites."""
        kinds = [one.kind for one in self.catalog.live.values()]
        names = (
            ("set", ObjectKind.STREAM_SET),
            ("own", ObjectKind.STREAM),
            ("composite", ObjectKind.COMPOSITE),
        )
        return " ".join(f"{kinds.count(kind)} {name}" for name, kind in names if kind in kinds)

    # -- files

    def clean(self) -> None:
        """Deletes what is marked for deletion, composites with what they link, and what was prepared and ran
        out."""
        catalog = self.catalog
        for key, deadline in list(catalog.deadlines.items()):
            if deadline < catalog.clock.ms and key in catalog.prepared:
                del catalog.prepared[key], catalog.deadlines[key]
                catalog.pending_deletions[key] = False
        for key, with_links in catalog.pending_deletions.items():
            data = self.store.objects.get(self.key(key))
            if with_links and data is not None:
                for link in links_of(memoryview(data)):
                    self.store.objects.pop(self.key(link.object_id), None)
            self.store.objects.pop(self.key(key), None)
        catalog.pending_deletions.clear()

    def check_files(self) -> None:
        """Every committed object and every link of one is in the store; whatever else is there is prepared or
        pending deletion."""
        catalog, expected = self.catalog, dict.fromkeys(self.catalog.live)
        for key, found in catalog.live.items():
            if found.kind is ObjectKind.COMPOSITE:
                expected |= dict.fromkeys(self.links(key))
        stored = {parse_object_key(CLUSTER_ID, key) for key in self.store.objects}
        assert not [key for key in expected if key not in stored]
        known = {*expected, *catalog.prepared, *catalog.pending_deletions}
        for key, with_links in catalog.pending_deletions.items():
            if with_links and key in stored:
                known |= set(self.links(key))
        assert not [key for key in stored if key not in known]

    def files_count(self) -> int:
        """Of what is committed, with what composites link."""
        composites = [key for key, one in self.catalog.live.items() if one.kind is ObjectKind.COMPOSITE]
        return len(self.catalog.live) + sum(len(self.links(key)) for key in composites)

    def links(self, object_id: ObjectId) -> list[ObjectId]:
        return [link.object_id for link in links_of(memoryview(self.store.objects[self.key(object_id)]))]


async def drained(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


__all__ = ["CompactedWorld", "CompactingCatalog", "MemoryStore", "SteppedClock", "drained"]
