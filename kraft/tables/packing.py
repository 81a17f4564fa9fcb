"""Lists of ranges in records of the metadata log, packed: a commit of thousands of ranges takes some 6 bytes
each.

    ranges of an object     by stream and start:  stream id, less the one before (uvarint) | start (uvarint) |
                                                  length (uvarint)
    holders of a stream     by start: start of the first (uvarint), then for each (id less the one before,
                            zig-zag) << 4 | slots (uvarint) | length (uvarint; of the last up to the stream's
                            end)

Not here: what they mean (ranges.py, objects.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millrace.kraft.tables.ranges import SLOT_BITS, SLOTS, Holder, Piece
from millrace.protocol.primitives import read_uvarlong, uvarint


def pack_ranges(ranges: Iterable[tuple[int, int, int]]) -> bytes:
    """(stream, start, end) each, by stream and start."""
    parts: list[bytes] = []
    before = 0
    for stream_id, start, end in ranges:
        parts += (uvarint(stream_id - before), uvarint(start), uvarint(end - start))
        before = stream_id
    return b"".join(parts)


def unpack_ranges(packed: bytes) -> Iterator[tuple[int, int, int]]:
    pos = stream_id = 0
    while pos < len(packed):
        delta, pos = read_uvarlong(packed, pos)
        start, pos = read_uvarlong(packed, pos)
        length, pos = read_uvarlong(packed, pos)
        stream_id += delta
        yield stream_id, start, start + length


def pack_holders(ranges: Iterable[tuple[int, int, Holder]]) -> bytes:
    """(start, end, holder) each, continuous."""
    parts: list[bytes] = []
    before = 0
    for start, end, holder in ranges:
        if not parts:
            parts.append(uvarint(start))
        delta = (holder >> SLOT_BITS) - before
        before = holder >> SLOT_BITS
        parts += (uvarint((delta << 1 ^ delta >> 63) << SLOT_BITS | holder & SLOTS), uvarint(end - start))
    return b"".join(parts)


def unpack_holders(packed: bytes) -> Iterator[Piece]:
    start, pos = read_uvarlong(packed, 0)
    held_by = 0
    while pos < len(packed):
        word, pos = read_uvarlong(packed, pos)
        length, pos = read_uvarlong(packed, pos)
        delta = word >> SLOT_BITS
        held_by += delta >> 1 ^ -(delta & 1)
        yield start, held_by << SLOT_BITS | word & SLOTS
        start += length
