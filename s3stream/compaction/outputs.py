"""Writes what compaction makes: whole blocks gathered into parts, one put for a small object, a multipart
upload for a large one.

Keeps true: what waits to be put is bounded, over all outputs of a compaction; an output that does not end is
aborted, so that no parts stay behind; nothing is deleted by hand, ids that are not committed run out.
"""

from __future__ import annotations

import asyncio
from collections import deque

from millrace.protocol.dataclass import dataclass
from millrace.runtime.objectstore import MultipartUpload, ObjectStore
from millrace.s3stream.compaction.counts import CompactionCounts
from millrace.s3stream.ids import ObjectId, StreamRange
from millrace.s3stream.objects.format import BlockRef
from millrace.s3stream.objects.joiner import ObjectJoiner
from millrace.s3stream.objects.placing import abandon, complete_object, put_object
from millrace.s3stream.ownership import Ownership


@dataclass(frozen=True, slots=True)
class WrittenObject:
    object_id: ObjectId
    size_bytes: int
    ranges: tuple[StreamRange, ...]
    rows: bytes  # of its index


class PutMemory:
    """Bytes on their way to the store; who brings more waits, unless nothing is on its way."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size_bytes: int) -> None:
        """In the order of asking."""
        if not self._waiting and self._has_room(size_bytes):
            self._used_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size_bytes)
            raise

    def leave(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        while self._waiting and (self._waiting[0][1].done() or self._has_room(self._waiting[0][0])):
            size_bytes, turn = self._waiting.popleft()
            if not turn.done():
                self._used_bytes += size_bytes
                turn.set_result(None)

    def _has_room(self, size_bytes: int) -> bool:
        return not self._used_bytes or self._used_bytes + size_bytes <= self._limit_bytes


class Output:
    """One object in the making: `add` blocks, then `finish`; `abort` when it failed."""

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        object_id: ObjectId,
        joiner: ObjectJoiner,
        part_bytes: int,
        memory: PutMemory,
        counts: CompactionCounts,
        ownership: Ownership,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._key = key
        self._object_id = object_id
        self._joiner = joiner
        self._part_bytes = part_bytes
        self._memory = memory
        self._counts = counts
        self._upload: MultipartUpload | None = None
        self._parts: list[asyncio.Task[None]] = []

    @property
    def held_bytes(self) -> int:
        """Gathered, and not yet on its way."""
        return self._joiner.ready_bytes

    async def add(self, ref: BlockRef, data: memoryview, body_sum: int | None) -> None:
        """See ObjectJoiner.add."""
        self._joiner.add(ref, data, body_sum)
        if self._joiner.ready_bytes >= self._part_bytes:
            await self._start_part(self._joiner.take())

    async def finish(self) -> WrittenObject:
        """Durable in the store on return."""
        rest, size_bytes, ranges = self._joiner.finish()
        if self._upload is None:
            await self._memory.enter(len(rest))
            try:
                await put_object(self._store, self._ownership, self._key, [rest])
            finally:
                self._memory.leave(len(rest))
            self._count(len(rest))
        else:
            await self._start_part(rest)
            for part in self._parts:
                await part
            await complete_object(self._store, self._ownership, self._key, self._upload, size_bytes)
            self._upload = None
        return WrittenObject(self._object_id, size_bytes, ranges, self._joiner.rows)

    async def abort(self) -> None:
        """Ends what is under way. Waits a bounded time for the store to forget the parts; else its own rules
        clean up."""
        for part in self._parts:
            part.cancel()
        await asyncio.gather(*self._parts, return_exceptions=True)
        upload, self._upload = self._upload, None
        if upload is not None:
            await abandon(self._key, upload)

    async def _start_part(self, data: bytearray) -> None:
        """Parts are numbered in the order in which they are started here."""
        if self._upload is None:
            self._upload = await self._store.start_multipart(self._key)
        for done in [part for part in self._parts if part.done()]:
            done.result()  # a failed part ends the copying here, not after all is read
        await self._memory.enter(len(data))
        self._parts.append(
            asyncio.create_task(self._put_part(self._upload, data), name=f"part-{self._object_id}")
        )
        await asyncio.sleep(0)

    async def _put_part(self, upload: MultipartUpload, data: bytearray) -> None:
        try:
            await upload.put_part([data])
        finally:
            self._memory.leave(len(data))
        self._count(len(data))

    def _count(self, size_bytes: int) -> None:
        self._counts.puts += 1
        self._counts.written_bytes += size_bytes
