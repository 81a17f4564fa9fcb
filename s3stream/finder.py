"""From an offset to the object that holds it and its blocks there: metadata names a few objects, their
indexes know.

    candidates (metadata, at hand) -> their indexes (kept, or one GET each, all at once) -> the blocks

Metadata tells exactly which object of its own a stream has at an offset, and of stream-set objects up to four
that may hold it. A composite is one GET too, and says which object it links there. So who reads something
cold waits for one round of GETs before the data's own.

Kept true: indexes are kept within one bound of bytes, the least recently used go first; an object that is
gone, or damaged, fails who needs it and nobody else: one of four that cannot be read, for whatever reason, is
no error while another has what is asked for. Not here: asking again when metadata was behind, or compaction
replaced an object (block_cache.py). Cancelling loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from millrace.protocol.dataclass import dataclass
from millrace.runtime.errors import Unavailable
from millrace.runtime.objectstore import ObjectMissing, ObjectStore, StoreDenied
from millrace.s3stream.block_lru import BlockLru
from millrace.s3stream.errors import ObjectCorrupt, OffsetGap, RangeLost, RangeOwed
from millrace.s3stream.ids import LOST_RANGE, OWED_RANGE, ObjectHint, ObjectId, ObjectKind, StreamId
from millrace.s3stream.metadata import ObjectCatalog
from millrace.s3stream.objects.format import BlockRef
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.objects.reader import CompositeReader, ObjectReader, tail_guess_bytes

READER_OVERHEAD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class FoundBlocks:
    """Blocks of one object that follow one another, from the one that holds the offset asked for."""

    object_id: ObjectId
    reader: ObjectReader
    refs: list[BlockRef]


class ObjectFinder:
    def __init__(
        self, store: ObjectStore, objects: ObjectCatalog, cluster_id: str, index_bytes_max: int
    ) -> None:
        self._store = store
        self._objects = objects
        self._cluster_id = cluster_id
        self._readers: BlockLru[ObjectId, ObjectReader] = BlockLru(index_bytes_max - index_bytes_max // 4)
        self._composites: BlockLru[ObjectId, CompositeReader] = BlockLru(index_bytes_max // 4)
        self.index_gets = 0
        self.index_get_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._readers.size_bytes + self._composites.size_bytes

    async def find(self, stream_id: int, start: int, end: int, max_bytes: int) -> FoundBlocks:
        """Blocks of [start, end) as ObjectIndex.find gives them. ObjectMissing when metadata knows no object
        or the store has it not, OffsetGap when none of those that it knows holds `start`, RangeOwed and
        RangeLost when it says that none does."""
        hints = holding(self._objects.candidates(StreamId(stream_id), start, 1), start)
        if not hints:
            raise ObjectMissing(f"(stream {stream_id}, offset {start})")
        check_held(hints[0], stream_id)
        if hints[0].kind is ObjectKind.COMPOSITE:
            return await self._find_linked(hints[0], stream_id, start, end, max_bytes)
        for hint in hints:
            reader = self._readers.get(hint.object_id)
            if reader is not None and reader.known_index is not None:
                refs = await reader.find(stream_id, start, end, max_bytes)
                if refs:
                    return FoundBlocks(hint.object_id, reader, refs)
        return await self._find_in_all(hints, stream_id, start, end, max_bytes)

    def is_owed(self, stream_id: int, offset: int) -> bool:
        """Whether `find` would raise RangeOwed."""
        hints = self._objects.candidates(StreamId(stream_id), offset, 1)
        return bool(hints) and hints[0].object_id == OWED_RANGE

    async def warm(self, stream_id: int, offset: int, limit: int) -> None:
        """Loads, at one time, the indexes of about `limit` objects that hold what follows `offset`: who reads
        on finds it in them without asking the store. What cannot be loaded is met by who needs it."""
        hints = self._objects.candidates(StreamId(stream_id), offset, limit)
        held = [hint for hint in hints if hint.object_id not in (OWED_RANGE, LOST_RANGE)]
        singles = [hint for hint in held if hint.kind is not ObjectKind.COMPOSITE][:limit]
        readers = [self._reader(hint.object_id, hint.size_bytes, hint.writer) for hint in singles]
        await asyncio.gather(*(self._load_index(*one) for one in zip(singles, readers, strict=True)))

    async def find_some(
        self, stream_id: int, start: int, end: int, max_bytes: int, objects_max: int
    ) -> list[FoundBlocks]:
        """As `find`, going on into the objects that follow: at most so many, whose indexes are loaded
        together. The first one is there, or the reason is raised that `find` gives."""
        found = [await self.find(stream_id, start, end, max_bytes)]
        while len(found) < objects_max:
            last = found[-1].refs
            start, max_bytes = last[-1].end, max_bytes - sum(ref.size_bytes for ref in last)
            if start >= end or max_bytes <= 0:
                break
            if len(found) == 1:
                await self.warm(stream_id, start, objects_max - 1)
            try:
                found.append(await self.find(stream_id, start, end, max_bytes))
            except (ObjectMissing, OffsetGap, RangeOwed, RangeLost):
                break  # the end of what is committed, or an object that is gone: who reads there looks again
        return found

    async def resume_after(self, stream_id: int, offset: int) -> int:
        """A read of `offset` met damage: the offset from which on another block, or object, holds the stream,
        which may be damaged, too. What no index tells ends with the objects that metadata names for it.
        Raises ObjectMissing when metadata names none, and StoreDenied or Unavailable where an index is not
        known now."""
        hints = holding(self._objects.candidates(StreamId(stream_id), offset, 1), offset)
        if not hints:
            raise ObjectMissing(f"(stream {stream_id}, offset {offset})")
        check_held(hints[0], stream_id)
        if hints[0].kind is ObjectKind.COMPOSITE:
            return await self._resume_in_composite(hints[0], stream_id, offset)
        readers = [self._reader(hint.object_id, hint.size_bytes, hint.writer) for hint in hints]
        results = await asyncio.gather(*(self._load_index(*one) for one in zip(hints, readers, strict=True)))
        bounds = [hint.end for hint in hints]
        for reader, error in zip(readers, results, strict=True):
            if isinstance(error, StoreDenied | Unavailable):
                raise error
            with suppress(ObjectCorrupt):  # a row that is none tells nothing
                bound = (
                    None if reader.known_index is None else reader.known_index.bound_after(stream_id, offset)
                )
                bounds += [] if bound is None else [bound]
        return min(bounds)

    async def _resume_in_composite(self, hint: ObjectHint, stream_id: int, offset: int) -> int:
        try:
            found = await self._find_linked(hint, stream_id, offset, offset + 1, 1)
        except (ObjectMissing, ObjectCorrupt, OffsetGap):
            return hint.end
        return found.refs[0].end

    def drop_all(self) -> None:
        """Forgets every index."""
        self._readers.drop_all()
        self._composites.drop_all()

    async def _find_in_all(
        self, hints: Sequence[ObjectHint], stream_id: int, start: int, end: int, max_bytes: int
    ) -> FoundBlocks:
        readers = [self._reader(hint.object_id, hint.size_bytes, hint.writer) for hint in hints]
        # One reader may be given here by another who looks: the index is loaded once.
        results = await asyncio.gather(*(self._load_index(*one) for one in zip(hints, readers, strict=True)))
        for hint, reader, error in zip(hints, readers, results, strict=True):
            refs = await reader.find(stream_id, start, end, max_bytes) if error is None else []
            if refs:
                return FoundBlocks(hint.object_id, reader, refs)
        raise worst(
            [error for error in results if error is not None], OffsetGap(stream_id, start, hints[0].end)
        )

    async def _load_index(self, hint: ObjectHint, reader: ObjectReader) -> Exception | None:
        """What kept it from being loaded, for the one who needs it."""
        if reader.known_index is not None:
            return None
        self.index_gets += 1
        self.index_get_bytes += tail_guess_bytes(hint.size_bytes)
        try:
            index = await reader.index()
        except (ObjectMissing, ObjectCorrupt, StoreDenied, Unavailable) as error:
            self._readers.drop(hint.object_id)
            return error
        # Charged again, now that its size is known. A small object is kept whole with its index.
        is_whole = tail_guess_bytes(hint.size_bytes) == hint.size_bytes
        charge_bytes = READER_OVERHEAD_BYTES + index.size_bytes + (hint.size_bytes if is_whole else 0)
        self._readers.put(hint.object_id, reader, charge_bytes)
        return None

    async def _find_linked(
        self, hint: ObjectHint, stream_id: int, start: int, end: int, max_bytes: int
    ) -> FoundBlocks:
        composite = self._composites.get(hint.object_id)
        if composite is None:
            composite = CompositeReader(
                self._store, object_key(self._cluster_id, hint.object_id), hint.writer
            )
            self.index_gets += 1
            index = await composite.index()
            self.index_get_bytes += index.size_bytes
            self._composites.put(hint.object_id, composite, READER_OVERHEAD_BYTES + index.size_bytes)
        found = await composite.find(stream_id, start, end, max_bytes)
        if found is None:
            raise OffsetGap(stream_id, start, hint.end)
        link, refs = found
        return FoundBlocks(link.object_id, self._reader(link.object_id, link.size_bytes, link.writer), refs)

    def _reader(self, object_id: ObjectId, size_bytes: int, writer: int = 0) -> ObjectReader:
        reader = self._readers.get(object_id)
        if reader is None:
            reader = ObjectReader(
                self._store, object_key(self._cluster_id, object_id), size_bytes, writer=writer
            )
            self._readers.put(object_id, reader, READER_OVERHEAD_BYTES)
        return reader


def check_held(hint: ObjectHint, stream_id: int) -> None:
    """Raises RangeOwed, RangeLost where no object holds it."""
    if hint.object_id == OWED_RANGE:
        raise RangeOwed(stream_id, hint.start, hint.end)
    if hint.object_id == LOST_RANGE:
        raise RangeLost(stream_id, hint.start, hint.end)


def holding(hints: Sequence[ObjectHint], offset: int) -> list[ObjectHint]:
    """Those of the candidates that may hold `offset` itself: the first ones, with bounds of their own or in
    common."""
    return [hint for hint in hints if hint.start <= offset < hint.end]


def worst(errors: Sequence[Exception], otherwise: Exception) -> Exception:
    """What to tell who found nothing. What the store did not answer may have been what is asked for, and may
    be answered later. An object that is gone may have been replaced, so that asking metadata again helps;
    damage does not pass, and is told when nothing else is the matter."""
    for kind in (Unavailable, StoreDenied, ObjectMissing):
        for error in errors:
            if isinstance(error, kind):
                return error
    return errors[0] if errors else otherwise
