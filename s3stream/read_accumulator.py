"""What one fetch has gathered so far: entries without a gap, bounded by an end offset and by bytes. Pure.

It is filled from blocks, objects and the log cache by turns, and is the one place that checks that they fit
together: no entry is given to a reader that does not begin where the one before it ended.
"""

from __future__ import annotations

from millrace.s3stream.errors import OffsetGap
from millrace.s3stream.objects.format import Entry


class ReadAccumulator:
    """`next_offset` is where the next entry must begin (or, before the first one, what it must contain)."""

    __slots__ = ("end", "entries", "has_loaded", "is_full", "left_bytes", "next_offset", "start", "stream_id")

    def __init__(self, stream_id: int, start: int, end: int, max_bytes: int) -> None:
        self.stream_id = stream_id
        self.start = start
        self.next_offset = start
        self.end = end
        self.left_bytes = max_bytes
        self.entries: list[Entry] = []
        self.is_full = start >= end
        self.has_loaded = False  # an object had to be asked for some of it

    def take(self, entries: list[Entry]) -> None:
        """Adds entries until one begins at or beyond the end, or does not fit; the very first always fits.
        Raises OffsetGap where an entry does not follow the one before; those before it are kept."""
        if self.is_full:
            return
        found, end, left, next_offset = self.entries, self.end, self.left_bytes, self.next_offset
        gap_offset = -1
        for entry in entries:
            base = entry.base_offset
            length = len(entry.data)
            if base >= end or (length > left and found):
                self.is_full = True
                break
            if base != next_offset and (found or not base < next_offset < base + entry.count):
                gap_offset = base
                break
            found.append(entry)
            left -= length
            next_offset = base + entry.count
        self.left_bytes, self.next_offset = left, next_offset
        if gap_offset >= 0:
            raise OffsetGap(self.stream_id, next_offset, gap_offset)
        if next_offset >= end or (left <= 0 and found):
            self.is_full = True

    def skip_to(self, offset: int) -> None:
        """Nothing has what lies below: entries go on behind it."""
        self.next_offset = max(self.next_offset, offset)
        self.is_full |= self.next_offset >= self.end

    def adopt(self, other: ReadAccumulator) -> None:
        """Takes over what another one gathered, which began where this one stands: checked there, not looked
        at again. Raises OffsetGap where it began elsewhere."""
        if other.start != self.next_offset or other.stream_id != self.stream_id:
            raise OffsetGap(self.stream_id, self.next_offset, other.start)
        self.entries += other.entries
        self.next_offset = other.next_offset
        self.left_bytes = other.left_bytes
        self.is_full |= self.next_offset >= self.end or (self.left_bytes <= 0 and bool(self.entries))
