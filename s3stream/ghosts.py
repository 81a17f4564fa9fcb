"""What the log cache dropped lately, without the bytes: whether a larger cache would have had what a reader
did not find. Pure.

A block that was uploaded is worth its memory only when somebody comes for it, and nobody knows that before.
So the cache keeps little of what it could drop, and more once readers come for what a larger one would have
had; how much is log_cache.py's. Memory that is not taken costs nothing: taking it was measured to cost more
than all else a produce request does (see runtime/disk/aligned.py).

Bounded in blocks, in their ranges, and in the bytes they had: older ones are as if they had never been.
"""

from __future__ import annotations

from collections import deque

BLOCKS_MAX = 64
RANGES_MAX = 50_000


class Ghosts:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._ranges_count = 0
        # Oldest first: the bytes of a block, and of each stream in it the range that it held.
        self._blocks: deque[tuple[int, dict[int, tuple[int, int]]]] = deque()

    def add(self, size_bytes: int, ranges: dict[int, tuple[int, int]]) -> None:
        self._blocks.append((size_bytes, ranges))
        self._bytes += size_bytes
        self._ranges_count += len(ranges)
        while (
            self._bytes > self._bytes_max or len(self._blocks) > BLOCKS_MAX or self._ranges_count > RANGES_MAX
        ):
            self._forget(0)

    def take(self, stream_id: int, offset: int) -> bool:
        """Whether a block had that offset. It is forgotten: the next miss in it tells nothing new."""
        for place, (_, ranges) in enumerate(self._blocks):
            start, end = ranges.get(stream_id, (0, 0))
            if start <= offset < end:
                self._forget(place)
                return True
        return False

    def _forget(self, place: int) -> None:
        size_bytes, ranges = self._blocks[place]
        del self._blocks[place]
        self._bytes -= size_bytes
        self._ranges_count -= len(ranges)
