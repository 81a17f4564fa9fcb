"""The bucket against the metadata: what is missing, what nobody knows, what is damaged, where a stream has
gaps or is stored twice.

    listing x metadata -> every committed object read whole, each block, index and footer by its checksums
        -> every stream's
    ranges laid side by side, from the objects' own indexes

Findings name the object, the part, the stream and the offsets. What metadata calls prepared or pending
deletion may be there or not; what a composite links is known through it. Not here: where metadata comes from
(inspection.py), how ranges are compared (bucket_check_ranges.py), what is printed (cli/fsck.py). Memory is
bounded: a few spans of blocks at a time, and of each object 24 bytes a row. Kept true: nothing is written or
deleted here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import field
from enum import StrEnum
from typing import TypeVar

from millrace.broker.inspection.bucket_check_ranges import Contents, Spans, faults_of, joined
from millrace.broker.inspection.inventory import (
    KnownObject,
    KnownStream,
    known_objects,
    known_streams,
    next_object_id,
)
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.objects import ObjectState
from millrace.protocol.dataclass import dataclass
from millrace.runtime.errors import Unavailable
from millrace.runtime.objectstore import ObjectEntry, ObjectMissing, ObjectStore, StoreDenied
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import ObjectId, ObjectKind, StreamId
from millrace.s3stream.objects.composite import CompositeIndex, Link, links_of
from millrace.s3stream.objects.format import ROW, BlockRef, verify_yielding
from millrace.s3stream.objects.keys import object_key, objects_prefix, parse_object_key
from millrace.s3stream.objects.reader import ObjectReader

T = TypeVar("T")

SPAN_BYTES_MAX = 8 << 20
OBJECTS_AT_ONCE = 4
STREAMS_AT_ONCE = 64  # between two looks at whether somebody else wants to run


class Kind(StrEnum):
    MISSING = "missing"
    DAMAGED = "damaged"
    SIZE = "size"
    GAP = "gap"
    OVERLAP = "overlap"
    UNREADABLE = "unreadable"
    # No data is affected by these.
    ORPHAN = "orphan"
    NEWER = "newer"
    STRANGE = "strange key"
    UPLOAD = "unfinished upload"


HARMLESS = (Kind.ORPHAN, Kind.NEWER, Kind.STRANGE, Kind.UPLOAD)
# What becomes of an object whose contents are not known, in the reason for a gap.
LOST = {
    Kind.MISSING: "is missing",
    Kind.DAMAGED: "is damaged",
    Kind.SIZE: "is not of the size that was written",
    Kind.UNREADABLE: "could not be read",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """`object_id`, `stream_id`, `start` and `end` are -1 where there is none to name. [start, end) are
    offsets of the stream."""

    kind: Kind
    what: str
    object_id: int = -1
    key: str = ""
    stream_id: int = -1
    start: int = -1
    end: int = -1

    @property
    def is_harm(self) -> bool:
        return self.kind not in HARMLESS


@dataclass(slots=True)
class Progress:
    """`listed`: objects in the bucket so far. `bytes` are those that were read, of `bytes_total` in all
    objects."""

    listed: int = 0
    streams_total: int = 0
    streams: int = 0
    objects_total: int = 0
    objects: int = 0
    bytes_total: int = 0
    bytes: int = 0
    blocks: int = 0


@dataclass(slots=True)
class Checked:
    """`orphans` are known to nobody, by the metadata's own numbering; `links_unknown`: a composite could not
    be read, so an orphan may be what it links."""

    findings: list[Finding] = field(default_factory=list)
    orphans: list[ObjectEntry] = field(default_factory=list)
    links_unknown: bool = False
    progress: Progress = field(default_factory=Progress)
    prepared_count: int = 0
    pending_deletion_count: int = 0
    stream_count: int = 0

    @property
    def is_sound(self) -> bool:
        return not any(finding.is_harm for finding in self.findings)


class BucketCheck:
    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        image: MetadataImage,
        *,
        reads_data: bool = True,
    ) -> None:
        """`reads_data` False: footers and indexes alone, no blocks."""
        self._store = store
        self._cluster_id = cluster_id
        self._image = image
        self._reads_data = reads_data
        self._listed: dict[ObjectId, ObjectEntry] = {}
        self._linked: dict[ObjectId, Link] = {}
        self._going: dict[ObjectId, None] = {}  # with a composite that is marked for deletion
        self._contents = Contents()
        self._found = Checked()

    @property
    def progress(self) -> Progress:
        """Of the run that is under way."""
        return self._found.progress

    async def run(self) -> Checked:
        """Raises what the store raises when it cannot be listed."""
        await self._list()
        known = {one.object_id: one for one in known_objects(self._image)}
        committed = [one for one in known.values() if one.is_committed]
        self._found.prepared_count = sum(one.state is ObjectState.PREPARED for one in known.values())
        self._found.pending_deletion_count = sum(
            one.state is ObjectState.PENDING_DELETION for one in known.values()
        )
        progress = self._found.progress
        progress.objects_total = len(committed)
        progress.bytes_total = sum(one.size_bytes for one in committed)
        await self._each(self._check_object, committed)
        links = [link for object_id, link in self._linked.items() if object_id not in known]
        progress.objects_total += len(links)
        await self._each(self._check_link, links)
        await self._each(
            self._check_pending_deletion, [one for one in known if self._image.objects.by_id[one].with_links]
        )
        self._find_orphans(known)
        await self._check_streams()
        return self._found

    def _add(
        self, kind: Kind, what: str, object_id: int = -1, stream_id: int = -1, start: int = -1, end: int = -1
    ) -> None:
        key = object_key(self._cluster_id, ObjectId(object_id)) if object_id >= 0 else ""
        self._found.findings.append(Finding(kind, what, object_id, key, stream_id, start, end))

    async def _list(self) -> None:
        async for entry in self._store.list(objects_prefix(self._cluster_id)):
            object_id = parse_object_key(self._cluster_id, entry.key)
            if object_id is None:
                self._found.findings.append(Finding(Kind.STRANGE, "no object has such a key", key=entry.key))
            else:
                self._listed[object_id] = entry
                self.progress.listed += 1

    async def _each(self, check: Callable[[T], Awaitable[None]], items: Sequence[T]) -> None:
        """A few at once, whatever their count."""
        rest = iter(items)

        async def worker() -> None:
            for item in rest:
                await check(item)

        await asyncio.gather(*(worker() for _ in range(OBJECTS_AT_ONCE)))

    def _find_orphans(self, known: dict[ObjectId, KnownObject]) -> None:
        newest = next_object_id(self._image)
        for object_id, entry in self._listed.items():
            if object_id in known or object_id in self._linked or object_id in self._going:
                continue
            size = f"{entry.size_bytes} bytes"
            if object_id >= newest:
                self._add(
                    Kind.NEWER,
                    f"{size}; this metadata has given ids up to {newest - 1} only: is it an old copy of the "
                    "log directory?",
                    object_id,
                )
            else:
                self._add(Kind.ORPHAN, f"{size}, in no metadata", object_id)
                self._found.orphans.append(entry)

    # One object.

    async def _check_object(self, known: KnownObject) -> None:
        if known.kind is ObjectKind.COMPOSITE:
            await self._check_composite(known)
        else:
            spans = await self._check_blocks(known.object_id, known.size_bytes, known.writer)
            if spans is not None and known.stream_id >= 0:
                self._compare_range(known, spans)
        self.progress.objects += 1

    async def _check_link(self, link: Link) -> None:
        await self._check_blocks(link.object_id, link.size_bytes, link.writer)
        self.progress.objects += 1

    def _compare_range(self, known: KnownObject, spans: Spans) -> None:
        is_whole = len(spans) == 1 and spans[0][0] == known.stream_id
        if not is_whole or not spans[0][1] <= known.start < known.end <= spans[0][2]:
            self._add(
                Kind.DAMAGED,
                f"metadata says stream {known.stream_id} [{known.start}, {known.end}), its index says "
                f"{_text(spans)}",
                known.object_id,
                known.stream_id,
                known.start,
                known.end,
            )

    async def _check_composite(self, known: KnownObject) -> None:
        object_id = known.object_id
        key = object_key(self._cluster_id, object_id)
        if object_id not in self._listed:
            self._lose(object_id, Kind.MISSING, "a composite that metadata names is not in the bucket")
            self._found.links_unknown = True
            return
        try:
            index = CompositeIndex(memoryview(await self._store.get(key)), known.writer)
            rows = index.linked()
        except ObjectCorrupt as error:
            self._lose(object_id, Kind.DAMAGED, f"composite: {error.reason}")
            self._found.links_unknown = True
            return
        except (Unavailable, StoreDenied, ObjectMissing) as error:
            self._lose(object_id, Kind.UNREADABLE, str(error))
            self._found.links_unknown = True
            return
        stream_id = StreamId(ROW.unpack_from(rows[0].rows)[0])
        self._linked |= {link.object_id: link for link in index.links}
        self._contents.links[object_id] = index.links
        self._compare_range(known, [(stream_id, index.start, index.end)])

    async def _check_pending_deletion(self, object_id: ObjectId) -> None:
        """What goes with a composite pending deletion is no orphan while the composite's file is there, which
        goes last."""
        if object_id not in self._listed:
            return
        try:
            links = links_of(memoryview(await self._store.get(object_key(self._cluster_id, object_id))))
        except ObjectMissing:
            return
        except (ObjectCorrupt, Unavailable, StoreDenied):
            self._found.links_unknown = True
            return
        self._going |= dict.fromkeys(link.object_id for link in links)

    async def _check_blocks(self, object_id: ObjectId, size_bytes: int, writer: int = 0) -> Spans | None:
        """What an object with blocks holds by its own index, after all of it was verified; None when that
        cannot be read."""
        entry = self._listed.get(object_id)
        if entry is None:
            self._lose(
                object_id, Kind.MISSING, f"{size_bytes} bytes that metadata names are not in the bucket"
            )
            return None
        if entry.size_bytes != size_bytes:
            what = f"{entry.size_bytes} bytes in the bucket, {size_bytes} in metadata"
            self._lose(object_id, Kind.SIZE, what)
            return None
        reader = ObjectReader(self._store, entry.key, size_bytes, writer=writer)
        try:
            index = await reader.index()
            rows = list(index.rows())
        except ObjectCorrupt as error:
            self._lose(object_id, Kind.DAMAGED, error.reason)
            return None
        except (Unavailable, StoreDenied, ObjectMissing) as error:
            self._lose(object_id, Kind.UNREADABLE, str(error))
            return None
        self._check_layout(object_id, rows, index.blocks_end)
        spans = list(joined(rows))
        self._contents.spans[object_id] = spans
        self.progress.bytes += size_bytes - index.blocks_end
        if self._reads_data:
            for run in _runs(sorted(rows, key=lambda row: row.position)):
                await self._check_run(object_id, reader, run)
        return spans

    def _check_layout(self, object_id: ObjectId, rows: Sequence[BlockRef], blocks_end: int) -> None:
        expected = 0
        for row in sorted(rows, key=lambda row: row.position):
            if row.position != expected:
                what = "belong to no block" if row.position > expected else "belong to two blocks"
                low, high = sorted((expected, row.position))
                self._add(Kind.DAMAGED, f"index: bytes [{low}, {high}) {what}", object_id)
            expected = row.position + row.size_bytes
        if expected != blocks_end:
            self._add(Kind.DAMAGED, f"index: bytes [{expected}, {blocks_end}) belong to no block", object_id)

    async def _check_run(self, object_id: ObjectId, reader: ObjectReader, run: Sequence[BlockRef]) -> None:
        try:
            data = await reader.read_span(run)
        except (ObjectCorrupt, Unavailable, StoreDenied, ObjectMissing) as error:
            for span in joined(sorted(run, key=lambda row: (row.stream_id, row.start))):
                self._add(
                    Kind.UNREADABLE, f"blocks from byte {run[0].position} on: {error}", object_id, *span
                )
            return
        for row in run:
            start = row.position - run[0].position
            try:
                for _ in verify_yielding(row, data[start : start + row.size_bytes]):
                    await asyncio.sleep(0)
            except ObjectCorrupt as error:
                within = f", {error.position} bytes into it" if error.position else ""
                what = f"block at byte {row.position}: {error.reason}{within}"
                self._add(Kind.DAMAGED, what, object_id, row.stream_id, row.start, row.end)
            self.progress.blocks += 1
        self.progress.bytes += len(data)

    def _lose(self, object_id: ObjectId, kind: Kind, what: str) -> None:
        self._contents.unread[object_id] = LOST[kind]
        self._add(kind, what, object_id)

    # The streams.

    async def _check_streams(self) -> None:
        streams = list(known_streams(self._image))
        self.progress.streams_total = self._found.stream_count = len(streams)
        for number, stream in enumerate(streams):
            if not number % STREAMS_AT_ONCE:
                await asyncio.sleep(0)
            self._check_stream(stream)
            self.progress.streams += 1

    def _check_stream(self, stream: KnownStream) -> None:
        for fault in faults_of(stream, self._contents):
            kind = Kind.OVERLAP if fault.object_id >= 0 else Kind.GAP
            self._add(kind, fault.what, fault.object_id, stream.stream_id, fault.start, fault.end)


def _runs(rows: Sequence[BlockRef]) -> Iterator[list[BlockRef]]:
    """Blocks that lie side by side, up to SPAN_BYTES_MAX together, or one that is larger alone."""
    run: list[BlockRef] = []
    size_bytes = 0
    for row in rows:
        is_next = bool(run) and run[-1].position + run[-1].size_bytes == row.position
        if run and (not is_next or size_bytes + row.size_bytes > SPAN_BYTES_MAX):
            yield run
            run, size_bytes = [], 0
        run.append(row)
        size_bytes += row.size_bytes
    if run:
        yield run


def _text(spans: Spans) -> str:
    return (
        ", ".join(f"stream {stream_id} [{start}, {end})" for stream_id, start, end in spans[:3]) or "nothing"
    )
