"""One stream as its owner holds it: offsets are given here, in the order of the calls.

    start <= committed_end <= confirmed_end <= next_offset

  * next_offset    given to the next append; only `append` moves it, and never waits;
  * confirmed_end  durable in the WAL and visible to readers; moved by storage.py, in WAL order;
  * committed_end  held by objects that metadata knows: what the WAL may forget;
  * start          below it nothing is read any more.

Not here: what an append does once it is in the WAL, caches, uploads (storage.py). What is appended is opaque
and has `count` offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from millrace.protocol.crc32c import crc32c
from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Closed, Corrupt
from millrace.s3stream.damaged_reads import DamagedReads
from millrace.s3stream.errors import OffsetBeyondEnd, OffsetTrimmed, StreamFenced
from millrace.s3stream.ids import OpenedStream
from millrace.s3stream.objects.format import (
    ENTRY_HEADER_BYTES,
    SUMMED_FROM,
    Entry,
    encode_entry_header,
    encode_entry_header_of,
)
from millrace.wal.log import WalRecord


class Append:
    """An append under way: its offsets are given, it is durable when `on_done` is called."""

    __slots__ = ("base_offset", "crc", "end", "on_done", "payload", "stream", "wal_end")

    def __init__(
        self,
        stream: Stream,
        base_offset: int,
        end: int,
        wal_end: int,
        payload: memoryview,
        crc: int,
        on_done: Callable[[Append], None] | None,
    ) -> None:
        self.stream = stream
        self.base_offset = base_offset
        self.end = end
        self.wal_end = wal_end
        self.payload = payload
        self.crc = crc
        self.on_done = on_done

    def __repr__(self) -> str:
        return f"append {self.stream.stream_id}:[{self.base_offset},{self.end}) wal end {self.wal_end}"


class StreamHome(Protocol):
    """What a stream asks of the engine that holds it (storage.py)."""

    append_wal: Callable[..., WalRecord]
    damaged: DamagedReads

    def on_appended(self, append: Append) -> None: ...

    def read_cached(self, stream_id: int, start: int, end: int, max_bytes: int) -> list[Entry] | None: ...

    async def fetch(self, stream_id: int, start: int, end: int, max_bytes: int) -> list[Entry]: ...

    def is_owed(self, stream_id: int, offset: int) -> bool: ...

    async def resume_after(self, stream_id: int, offset: int) -> int: ...

    async def trim_catalog(self, stream: Stream) -> None: ...

    async def close_stream(self, stream: Stream) -> None: ...

    async def seal_stream(self, stream: Stream) -> None: ...


class Stream:
    __slots__ = (
        "_storage",
        "committed_end",
        "confirmed_end",
        "epoch",
        "group",
        "is_closed",
        "is_fenced",
        "next_offset",
        "on_advance",
        "start",
        "stream_id",
        "trim_lock",
        "trimmed_start",
    )

    def __init__(self, storage: StreamHome, opened: OpenedStream) -> None:
        self._storage = storage
        self.stream_id = opened.stream_id
        self.epoch = opened.epoch
        self.start = opened.start
        self.trimmed_start = opened.start  # what metadata knows of `start`
        end = max(opened.start, opened.end)
        self.next_offset = end
        self.confirmed_end = end
        self.committed_end = end
        # Called once for every WAL group that moved confirmed_end. Set by whoever serves the stream.
        self.on_advance: Callable[[Stream], None] | None = None
        self.group = 0  # the last WAL group that moved this stream; storage.py's
        self.is_closed = False
        self.is_fenced = False
        self.trim_lock: asyncio.Lock | None = None

    def __repr__(self) -> str:
        state = " fenced" if self.is_fenced else " closed" if self.is_closed else ""
        return (
            f"stream {self.stream_id} epoch {self.epoch} start {self.start} committed {self.committed_end} "
            f"confirmed {self.confirmed_end} next {self.next_offset}{state}"
        )

    def append(
        self,
        count: int,
        parts: Sequence[Buffer],
        on_done: Callable[[Append], None] | None = None,
        tail_crc: int | None = None,
    ) -> Append:
        """Gives the next `count` offsets to the concatenation of `parts` (flat views of bytes, copied before
        this returns). `tail_crc`: the CRC32C of the second part, just verified; there are two then, and the
        first is SUMMED_FROM bytes.

        Never waits. `on_done` is called from the loop once the bytes are durable and readable, in the order
        of the appends. Raises WalFull, with no offset given, when the room was not there (ask
        `Storage.room_bytes` first), Closed and StreamFenced.
        """
        if self.is_closed:
            raise self._refusal()
        base_offset = self.next_offset
        # An error from the append to the return is not caught by anybody: a hole in offsets is worse than a
        # restart.
        if tail_crc is None:
            header = encode_entry_header(self.stream_id, self.epoch, base_offset, count, parts)
            record = self._storage.append_wal(header, *parts)
        else:
            head, tail = parts
            assert len(head) == SUMMED_FROM
            length, payload_sum = SUMMED_FROM + len(tail), crc32c(head, tail_crc)
            header = encode_entry_header_of(
                self.stream_id, self.epoch, base_offset, count, length, payload_sum
            )
            record = self._storage.append_wal(b"".join((header, head)), tail, tail_crc=tail_crc)
        end = base_offset + count
        self.next_offset = end
        append = Append(
            self,
            base_offset,
            end,
            record.end,
            record.payload[ENTRY_HEADER_BYTES:],
            int.from_bytes(header[-4:], "big"),
            on_done,
        )
        self._storage.on_appended(append)
        return append

    def read_cached(self, start: int, end: int, max_bytes: int) -> list[Entry] | None:
        """As `fetch`, from memory and at once; None when the log cache does not hold the beginning."""
        end = self.bounded(start, end)
        return self._storage.read_cached(self.stream_id, start, end, max_bytes) if start < end else []

    async def fetch(self, start: int, end: int, max_bytes: int) -> list[Entry]:
        """Entries from the one that holds `start` to the last that begins before `end` (or before what is
        confirmed): the first whole, further ones while they fit `max_bytes`; at least one if there is any,
        possibly fewer than would fit. Cancelling loses nothing."""
        end = self.bounded(start, end)
        if start >= end:
            return []
        damaged = self._storage.damaged
        try:
            entries = await self._storage.fetch(self.stream_id, start, end, max_bytes)
        except Corrupt as error:
            # Trimmed, or deleted, while it was read: no damage then.
            self.bounded(start, end)
            damaged.note_failed(self.stream_id, start, error, asyncio.get_running_loop().time())
            raise
        if damaged and entries:
            damaged.note_read(self.stream_id, start, entries[-1].end, asyncio.get_running_loop().time())
        return entries

    def is_owed(self, offset: int) -> bool:
        """Whether an earlier owner's log alone has what lies there: it is asked, whatever the store does."""
        return self._storage.is_owed(self.stream_id, offset)

    async def resume_after(self, offset: int) -> int:
        """A read of `offset` failed for damage: where what is stored elsewhere begins, above it and not above
        what is confirmed. Raises as ObjectFinder.resume_after."""
        return min(await self._storage.resume_after(self.stream_id, offset), self.confirmed_end)

    async def trim(self, new_start: int) -> None:
        """Nothing below `new_start` is read from now on. Metadata knows on return, for what is committed as
        objects; for the rest it is told when that is committed. Raises OffsetBeyondEnd for an offset that is
        not confirmed."""
        if new_start > self.confirmed_end:
            raise OffsetBeyondEnd(self.stream_id, new_start, self.confirmed_end)
        self.start = max(self.start, new_start)
        await self._storage.trim_catalog(self)

    async def close(self) -> None:
        """Takes no more appends, uploads and commits what there is, then gives the stream up to the next
        owner."""
        await self._storage.close_stream(self)

    async def seal(self) -> None:
        """Takes no more appends, and gives the stream up to the next owner at once: what is not committed of
        it, the write-ahead log owes."""
        await self._storage.seal_stream(self)

    def bounded(self, start: int, end: int) -> int:
        """The end of what may be read. Raises StreamFenced; OffsetTrimmed, OffsetBeyondEnd where `start` is
        not in the stream."""
        if self.is_fenced:
            raise StreamFenced(self.stream_id, self.epoch)
        if start < self.start:
            raise OffsetTrimmed(self.stream_id, start, self.start)
        if start > self.confirmed_end:
            raise OffsetBeyondEnd(self.stream_id, start, self.confirmed_end)
        return min(end, self.confirmed_end)

    def _refusal(self) -> Exception:
        return (
            StreamFenced(self.stream_id, self.epoch)
            if self.is_fenced
            else Closed(f"stream {self.stream_id} is closed")
        )
