"""How much of a source one request brings. Pure.

A merge of k sorted sources holds a window of each, on average half used up, for a window is given back in
pieces. So with memory for M bytes a window may be 2M / (k + 3): of the three one stands for windows that
begin staggered, two for one that is read ahead of its need. Of sources of unequal sizes the windows go with
the roots of the sizes, which makes requests fewest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

from millrace.s3stream.objects.format import BlockRef

# Blocks within so much of each other come with one request whatever lies between them; beyond it, what lies
# between is an eighth at most.
NEAR_BYTES = 512 << 10
WASTE_PART = 8
# A window is given back in pieces of this size.
PIECE_BYTES = 1 << 20


def window_sizes(sizes: Sequence[int], memory_bytes: int, bytes_min: int, bytes_max: int) -> list[int]:
    """For each source. Never below `bytes_min`, whatever the memory."""
    if not sizes:
        return []
    roots = [sqrt(size_bytes) for size_bytes in sizes]
    unit = 2 * memory_bytes * len(sizes) / (len(sizes) + 3) / max(1.0, sum(roots))
    return [max(bytes_min, min(bytes_max, int(unit * root))) for root in roots]


def staggered(window_bytes: int, place: int, count: int, bytes_min: int) -> int:
    """The first window of the source at `place` of so many: so that not all are used up at once."""
    return max(bytes_min, window_bytes * (place + 1) // count)


class Window:
    """Blocks that one request brings: [start, end) of the object."""

    __slots__ = ("end", "refs", "start")

    def __init__(self, first: BlockRef) -> None:
        self.start = first.position
        self.end = first.position + first.size_bytes
        self.refs = [first]

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    def takes(self, ref: BlockRef, bytes_max: int) -> bool:
        """Whether the block comes with this request."""
        total = ref.position + ref.size_bytes - self.start
        if ref.position < self.end or total > bytes_max:
            return False
        gap = ref.position - self.end
        wanted = sum(own.size_bytes for own in self.refs) if gap and total > NEAR_BYTES else 0
        return not wanted or (total - wanted - ref.size_bytes) * WASTE_PART <= total

    def add(self, ref: BlockRef) -> None:
        self.refs.append(ref)
        self.end = ref.position + ref.size_bytes

    def spans(self) -> Iterator[tuple[int, int]]:
        """[start, end) of what is kept for itself: blocks side by side, so many that they make a piece."""
        start = end = self.start
        for ref in self.refs:
            if ref.position != end or end - start >= PIECE_BYTES:
                yield start, end
                start = ref.position
            end = ref.position + ref.size_bytes
        yield start, end
