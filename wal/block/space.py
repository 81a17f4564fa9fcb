"""How much of the ring is taken, and what a trim gives back. Pure arithmetic on positions.

`head` is the oldest position whose bytes must stay, as the durable device header has it; `tail` is where the
next block goes. tail - head never exceeds the ring. Blocks are remembered by the end of their content alone,
8 bytes each.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from millrace.wal.block.layout import BLOCK_BYTES, BLOCK_HEADER_BYTES, Geometry, align_up
from millrace.wal.record import RECORD_HEADER_BYTES

# The smallest payload that `room_bytes` speaks for.
PAYLOAD_BYTES_MIN = 64
_FORGET_COUNT = 4096


class BlockEnds:
    """Ends of the content of the blocks that are not yet forgotten, rising."""

    __slots__ = ("_ends", "_first")

    def __init__(self) -> None:
        self._ends = array("q")
        self._first = 0

    def __len__(self) -> int:
        return len(self._ends) - self._first

    def add(self, end: int) -> None:
        self._ends.append(end)

    def head_for(self, trim: int, head: int) -> int:
        """Where recovery may begin once everything that ends at or below `trim` is forgotten."""
        index = bisect_right(self._ends, trim, self._first)
        return align_up(self._ends[index - 1]) if index > self._first else head

    def forget(self, head: int) -> None:
        """Drops the blocks below a head that is durable."""
        self._first = bisect_right(self._ends, head, self._first)
        if self._first > _FORGET_COUNT and self._first > len(self._ends) // 2:
            del self._ends[: self._first]
            self._first = 0


class RingSpace:
    """Places for blocks, and the room that is left. `head` is moved by its owner when a header became
    durable."""

    __slots__ = ("_payload_scale", "_slack_bytes", "block_bytes_max", "geometry", "head", "ring_bytes")

    def __init__(
        self, geometry: Geometry, head: int, block_bytes_max: int, block_soft_bytes: int, arena_bytes: int
    ) -> None:
        self.geometry = geometry
        self.ring_bytes = geometry.ring_bytes
        self.head = head
        self.block_bytes_max = block_bytes_max
        self._set_scale(block_soft_bytes, arena_bytes)

    def _set_scale(self, block_soft_bytes: int, arena_bytes: int) -> None:
        """What a payload byte may cost at worst: records of the least size, each with a header, in blocks
        that were closed early. Of two neighbouring blocks (arenas) the second began because the first could
        not hold its first record, so together they hold more than one block (arena) may: hence the factors of
        two."""
        per_block = BLOCK_HEADER_BYTES + BLOCK_BYTES - 1
        blocks_per_byte = 2 / (block_soft_bytes - 2 * BLOCK_HEADER_BYTES) + 2 / arena_bytes
        per_record = (PAYLOAD_BYTES_MIN + RECORD_HEADER_BYTES) / PAYLOAD_BYTES_MIN
        self._payload_scale = 1 / (per_record * (1 + per_block * blocks_per_byte))
        self._slack_bytes = 6 * per_block

    def place(self, tail: int, block_bytes: int) -> int | None:
        """Where a block of this many bytes (aligned) goes when `tail` is free: there, or on the next lap, or
        nowhere yet."""
        lap_end = self.geometry.lap_end(tail)
        position = tail if tail + block_bytes <= lap_end else lap_end
        return position if position + block_bytes <= self.head + self.ring_bytes else None

    def limit(self, position: int) -> int:
        """The furthest end of a block that begins at `position`."""
        return min(self.geometry.lap_end(position), self.head + self.ring_bytes)

    def room_bytes(self, tail: int) -> int:
        """Payload that surely fits behind `tail` now, in whatever records of PAYLOAD_BYTES_MIN or more."""
        free = self.head + self.ring_bytes - tail
        to_lap_end = self.geometry.lap_end(tail) - tail
        if free > to_lap_end:
            # The rest of the lap may be wasted on a record that is too long for it, but not more than such a
            # record.
            free = max(to_lap_end, free - min(to_lap_end, self.block_bytes_max))
        return max(0, int((free - self._slack_bytes) * self._payload_scale))
