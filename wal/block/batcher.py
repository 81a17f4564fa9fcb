"""Group commit: records are copied into the block that is open, and a closed block is one aligned write.
Pure; hot.

The memory is handed in by the caller, arena by arena; the batcher fills it from front to back. It neither
writes nor waits, and does not know whether the ring has room: the caller opens each block with a limit it has
worked out.

Invariant: a record lies in one block, a block in one arena and in one lap; nothing is changed once
`close_block` has given a block away.
"""

from __future__ import annotations

from millrace.wal.block.layout import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    BlockHeader,
    align_up,
    encode_block_header,
)
from millrace.wal.log import WalRecord
from millrace.wal.record import RECORD_HEADER_BYTES, epoch_seed, put_record

_ZEROS = bytes(BLOCK_BYTES)


class ClosedBlock:
    """One write: the aligned bytes and their place. Its header is stamped at the last moment, with what is
    confirmed then."""

    __slots__ = ("content_end", "count", "end", "epoch", "position", "previous_end", "view")

    def __init__(
        self, view: memoryview, epoch: int, position: int, previous_end: int, content_end: int, count: int
    ) -> None:
        self.view = view
        self.epoch = epoch
        self.position = position
        self.previous_end = previous_end
        self.content_end = content_end
        self.end = position + len(view)
        self.count = count

    def stamp(self, confirmed: int) -> None:
        length = self.content_end - self.position
        header = BlockHeader(self.epoch, self.position, self.previous_end, confirmed, length, self.count)
        self.view[:BLOCK_HEADER_BYTES] = encode_block_header(header)


class Batcher:
    """The open block. `fill` and `limit` are offsets in the arena; while no block is open, limit is 0 and
    nothing fits."""

    __slots__ = (
        "_arena",
        "_base",
        "_count",
        "_epoch",
        "_origin",
        "_previous_end",
        "_seed",
        "fill",
        "limit",
        "tail",
    )

    def __init__(self, epoch: int, tail: int) -> None:
        self._epoch = epoch
        self._seed = epoch_seed(epoch)
        self._arena = memoryview(b"")
        self._base = 0
        self._origin = 0
        self._previous_end = tail
        self._count = 0
        self.fill = 0
        self.limit = 0
        self.tail = tail  # where the next block goes, as long as none is open

    @property
    def is_open(self) -> bool:
        return self._count > 0

    @property
    def open_bytes(self) -> int:
        return self.fill - self._base if self._count else 0

    @property
    def open_position(self) -> int:
        return self._origin + self._base

    @property
    def next_position(self) -> int:
        """Where the block after the open one would go."""
        return align_up(self._origin + self.fill) if self._count else self.tail

    @property
    def arena_bytes_left(self) -> int:
        return len(self._arena) - align_up(self.fill)

    def use_arena(self, view: memoryview) -> None:
        assert self._count == 0
        self._arena = view
        self.fill = 0

    def open_block(self, position: int, block_bytes_max: int) -> None:
        """The caller adds a record at once: an open block is never empty."""
        assert self._count == 0
        assert block_bytes_max <= self.arena_bytes_left
        self._base = align_up(self.fill)
        self._origin = position - self._base
        self._previous_end = self.tail
        self.fill = self._base + BLOCK_HEADER_BYTES
        self.limit = self._base + block_bytes_max

    def add(
        self, parts: tuple[bytes | bytearray | memoryview, ...], length: int, tail_crc: int | None = None
    ) -> WalRecord:
        """Copies a payload of `length` bytes in. The caller has compared with `limit`. `tail_crc`: of the
        last part, when it is known."""
        at = self.fill
        position = self._origin + at
        payload = put_record(self._arena, at, parts, length, position, tail_crc, self._seed)
        self.fill = end = at + RECORD_HEADER_BYTES + length
        self._count += 1
        return WalRecord(position, self._origin + end, payload)

    def close_block(self) -> ClosedBlock:
        end = align_up(self.fill)
        self._arena[self.fill : end] = _ZEROS[: end - self.fill]
        position = self._origin + self._base
        view = self._arena[self._base : end]
        block = ClosedBlock(
            view, self._epoch, position, self._previous_end, self._origin + self.fill, self._count
        )
        self.fill = end
        self.limit = 0
        self._count = 0
        self.tail = block.end
        return block
