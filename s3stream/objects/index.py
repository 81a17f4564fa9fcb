"""The index of one object, searched where it lies: raw rows of 36 bytes, no object per row. Pure.

Rows are sorted by (stream, start). Within a stream they neither overlap nor leave a gap: the writer refuses
both, and a search that meets either stops there. The index pins the bytes it was given; `size_bytes` is what
a cache should charge for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import StreamId, StreamRange
from millrace.s3stream.objects.format import ROW, ROW_BYTES, BlockRef, decode_index


class ObjectIndex:
    __slots__ = ("_rows", "blocks_end", "count", "size_bytes")

    def __init__(self, data: memoryview, blocks_end: int) -> None:
        """`data` is a whole index block, `blocks_end` its position in the object. Raises ObjectCorrupt."""
        self._rows = decode_index(data)
        self.count = len(self._rows) // ROW_BYTES
        self.size_bytes = len(data)
        self.blocks_end = blocks_end

    def __repr__(self) -> str:
        return f"ObjectIndex({self.count} rows, blocks end at {self.blocks_end})"

    @property
    def encoded(self) -> memoryview:
        """All rows as they are stored."""
        return self._rows

    def find(self, stream_id: int, start: int, end: int, max_bytes: int) -> list[BlockRef]:
        """Blocks that hold [start, end) of the stream, from the one holding `start`; empty when `start` is
        not here.

        Stops after the block with which `max_bytes` are reached. A block that begins before `start` is not
        counted, since what it holds of the range is not known before it is read; so the first block is always
        given, and a reader with a budget gets enough to use it up.
        """
        found: list[BlockRef] = []
        place = self._search(stream_id, start)
        next_offset, taken_bytes = start, 0
        while 0 <= place < self.count and next_offset < end and (not found or taken_bytes < max_bytes):
            ref = self.row(place)
            if ref.stream_id != stream_id or not ref.start <= next_offset < ref.end:
                break
            if ref.start >= start:
                taken_bytes += ref.size_bytes
            found.append(ref)
            next_offset = ref.end
            place += 1
        return found

    def bound_after(self, stream_id: int, offset: int) -> int | None:
        """Where the block of the stream that holds `offset` ends; none does: where the next one begins. None:
        no more of it is here."""
        place = self._search(stream_id, offset)
        for near in range(max(place, 0), min(place + 2, self.count)):
            ref = self.row(near)
            if ref.stream_id == stream_id and ref.end > offset:
                return ref.start if ref.start > offset else ref.end
        return None

    def row(self, place: int) -> BlockRef:
        """Raises ObjectCorrupt where the row is out of bounds."""
        stream_id, start, delta, entry_count, position, size = ROW.unpack_from(self._rows, place * ROW_BYTES)
        if (
            min(start, position) < 0
            or min(delta, entry_count, size) <= 0
            or position + size > self.blocks_end
        ):
            raise ObjectCorrupt(f"index row {place} is out of bounds", position)
        return BlockRef(StreamId(stream_id), start, start + delta, entry_count, position, size)

    def rows(self) -> Iterator[BlockRef]:
        """Every block, in order of (stream, start)."""
        return map(self.row, range(self.count))

    def ranges(self) -> tuple[StreamRange, ...]:
        """What the object holds of each stream; a stream with a gap has several."""
        ranges: list[StreamRange] = []
        for ref in self.rows():
            if ranges and ranges[-1].stream_id == ref.stream_id and ranges[-1].end == ref.start:
                ranges[-1] = StreamRange(ref.stream_id, ranges[-1].start, ref.end)
            else:
                ranges.append(StreamRange(ref.stream_id, ref.start, ref.end))
        return tuple(ranges)

    def _search(self, stream_id: int, start: int) -> int:
        """Place of the last row at or before (stream_id, start), or -1."""
        unpack, rows = ROW.unpack_from, self._rows
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            row = unpack(rows, middle * ROW_BYTES)
            if (row[0], row[1]) <= (stream_id, start):
                low = middle + 1
            else:
                high = middle
        return low - 1
