"""The entries of a block as they are stored, and where each begins; made into values when somebody reads
them. Pure.

A cached entry costs twelve bytes beside its own here. As values, one takes some hundred, and all of them are
looked through by every full collection of garbage: with a cache full of small entries that stopped the
process for a tenth of a second at a time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

from millrace.s3stream.objects.format import BlockRef, Entry, entry_at, scan_yielding

ENTRY_PLACE_BYTES = 12
PACKED_OVERHEAD_BYTES = 512


class PackedBlock:
    """Of one index row. Its bytes are `data`, exactly the row's. To be used once `scan` is over."""

    __slots__ = ("_bases", "_data", "_pinned_bytes", "_places", "end")

    def __init__(self, data: memoryview, end: int, pinned_bytes: int | None = None) -> None:
        """`pinned_bytes`: what `data` keeps alive, where that is more than itself."""
        self._data = data
        self._pinned_bytes = len(data) if pinned_bytes is None else pinned_bytes
        self._bases = array("q")
        self._places = array("I")
        self.end = end

    @staticmethod
    def of(ref: BlockRef, data: memoryview) -> PackedBlock:
        """Checked at once. Raises ObjectCorrupt."""
        block = PackedBlock(data, ref.end)
        for _ in block.scan(ref):
            pass
        return block

    def scan(self, ref: BlockRef) -> Iterator[None]:
        """Checks and finds the entries, in steps between which others may run. Raises ObjectCorrupt."""
        yield from scan_yielding(ref, self._data, self._bases, self._places)

    def __len__(self) -> int:
        return len(self._bases)

    @property
    def charge_bytes(self) -> int:
        """What it pins."""
        return self._pinned_bytes + ENTRY_PLACE_BYTES * len(self._bases) + PACKED_OVERHEAD_BYTES

    def entries(self, start: int, end: int, max_bytes: int, count_max: int) -> list[Entry]:
        """From the one that holds `start` (or the first), those that begin before `end`, up to the one with
        which `max_bytes` are exceeded, at most `count_max`."""
        found: list[Entry] = []
        if start >= self.end:
            return found
        data, bases, places, left_bytes = self._data, self._bases, self._places, max_bytes
        first = max(0, bisect_right(bases, start) - 1)
        for number in range(first, min(first + count_max, len(bases))):
            if bases[number] >= end:
                break
            entry = entry_at(data, places[number])
            found.append(entry)
            left_bytes -= len(entry.data)
            if left_bytes < 0:
                break
        return found

    def all_entries(self) -> list[Entry]:
        return [entry_at(self._data, place) for place in self._places]
