"""Timestamp to offset, within one segment. Pure.

An entry (timestamp, offset) says: no record of the segment below `offset` is later than `timestamp`. So the
first record at or after a wanted time lies at or after the offset of the last entry that is earlier than it,
and a scan of batch headers may begin there.

Entries are noted every `index.interval.bytes` and wait in a `TimeTail`; at a checkpoint the tail becomes one
chunk, an entry of the partition's time stream, whose offsets are bytes. A segment's index is a slice of that
stream, searched chunk by chunk.

    chunk    8 B  magic "MRTI" | version u8 | zero u8 | zero u16
             then entries of 12 B: timestamp i64 | offset above the segment's base u32

Invariant: timestamps never fall from one entry to the next, offsets grow; an entry's timestamp is the largest
of the segment's records below its offset. Losing entries makes a lookup slower, never wrong.
"""

from __future__ import annotations

import struct
from bisect import bisect_left

MAGIC = b"MRTI"
VERSION = 1
NO_TIMESTAMP = -1

_HEAD = struct.Struct(">4sBBH")
_ENTRY = struct.Struct(">qI")
CHUNK_HEADER_BYTES = _HEAD.size
ENTRY_BYTES = _ENTRY.size
TAIL_ENTRIES_MAX = 65_536  # 768 KiB; over it further entries of a tail are dropped


class TimeTail:
    """Entries of the open segment that are not in the stream yet, and what the next entry will say."""

    __slots__ = ("_base_offset", "_bytes_since_entry", "_entries", "_max_timestamp_ms")

    def __init__(self, base_offset: int, max_timestamp_ms: int = NO_TIMESTAMP) -> None:
        self._base_offset = base_offset
        self._max_timestamp_ms = max_timestamp_ms
        self._bytes_since_entry = 0
        self._entries = bytearray()

    def __len__(self) -> int:
        return len(self._entries) // ENTRY_BYTES

    def note(self, end_offset: int, max_timestamp_ms: int, size_bytes: int, interval_bytes: int) -> None:
        """A batch that ends at `end_offset` (exclusive) was added to the segment."""
        if max_timestamp_ms > self._max_timestamp_ms:
            self._max_timestamp_ms = max_timestamp_ms
        self._bytes_since_entry += size_bytes
        if self._bytes_since_entry > interval_bytes:
            self._bytes_since_entry = 0
            if len(self._entries) < TAIL_ENTRIES_MAX * ENTRY_BYTES and self._max_timestamp_ms >= 0:
                self._entries += _ENTRY.pack(self._max_timestamp_ms, end_offset - self._base_offset)

    def find(self, timestamp_ms: int) -> int | None:
        """Where a scan for the first record at or after `timestamp_ms` may begin, or None: the tail does not
        narrow it."""
        return _find(self._entries, 0, self._base_offset, timestamp_ms)

    def last_before(self, end_offset: int) -> tuple[int, int] | None:
        """As `last_in_chunk`, of the tail."""
        return _last_before(self._entries, 0, self._base_offset, end_offset)

    def encode(self) -> bytes:
        """The tail as one chunk."""
        return _HEAD.pack(MAGIC, VERSION, 0, 0) + self._entries

    def clear(self) -> None:
        """What was noted is in the stream now."""
        self._entries = bytearray()


def is_chunk(data: bytes | memoryview) -> bool:
    """Whether `data` is a whole chunk of a version known here."""
    if len(data) < CHUNK_HEADER_BYTES + ENTRY_BYTES or (len(data) - CHUNK_HEADER_BYTES) % ENTRY_BYTES:
        return False
    return _HEAD.unpack_from(data, 0) == (MAGIC, VERSION, 0, 0)


def find_in_chunk(chunk: bytes | memoryview, base_offset: int, timestamp_ms: int) -> int | None:
    """As `TimeTail.find`, in a chunk of the segment that begins at `base_offset`. None: look further left."""
    return _find(chunk, CHUNK_HEADER_BYTES, base_offset, timestamp_ms)


def last_in_chunk(chunk: bytes | memoryview, base_offset: int, end_offset: int) -> tuple[int, int] | None:
    """Of the last entry that speaks of no record from `end_offset` on: the offset below which the segment's
    largest timestamp is known, and that timestamp. None: look further left."""
    return _last_before(chunk, CHUNK_HEADER_BYTES, base_offset, end_offset)


def _find(
    data: bytes | bytearray | memoryview, start: int, base_offset: int, timestamp_ms: int
) -> int | None:
    entry = _last_below(data, start, 0, timestamp_ms)
    return None if entry is None else base_offset + entry[1]


def _last_before(
    data: bytes | bytearray | memoryview, start: int, base_offset: int, end_offset: int
) -> tuple[int, int] | None:
    entry = _last_below(data, start, 1, end_offset - base_offset + 1)
    return None if entry is None else (base_offset + entry[1], entry[0])


def _last_below(
    data: bytes | bytearray | memoryview, start: int, column: int, bound: int
) -> tuple[int, int] | None:
    """The last entry whose timestamp (`column` 0), or offset above the base (1), is below `bound`."""

    def value_at(place: int) -> int:
        return int(_ENTRY.unpack_from(data, start + place * ENTRY_BYTES)[column])

    count = bisect_left(range((len(data) - start) // ENTRY_BYTES), bound, key=value_at)
    return None if count == 0 else _ENTRY.unpack_from(data, start + (count - 1) * ENTRY_BYTES)
