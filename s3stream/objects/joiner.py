"""Whole blocks in, the parts of one object out: what compaction writes with. Pure.

Blocks are copied as they are, headers and checksums included; the caller has checked them. Index rows of blocks that continue each other
are joined up to `row_bytes_max`, the unit of reading, so that many small uploads become few rows. Not here: entries (writer.py).

Kept true: streams come in ascending order, each with one range without overlap or gap; every row's delta, count and size fit an i32.
"""

from __future__ import annotations

from millrace.s3stream.ids import StreamId, StreamRange
from millrace.s3stream.objects.format import (
    FOOTER_BYTES,
    INT32_MAX,
    BlockRef,
    Buffer,
    Footer,
    encode_footer,
    encode_index,
    encode_row,
)


class ObjectJoiner:
    """`ready_bytes` are held until `take` hands them over."""

    def __init__(self, row_bytes_max: int) -> None:
        self._row_bytes_max = row_bytes_max
        self._held = bytearray()
        self._rows = bytearray()
        self._row: BlockRef | None = None  # not yet sealed
        self._ranges: list[StreamRange] = []
        self._blocks_bytes = 0

    @property
    def ready_bytes(self) -> int:
        return len(self._held)

    @property
    def blocks_bytes(self) -> int:
        return self._blocks_bytes

    def add(self, ref: BlockRef, data: Buffer) -> None:
        """Adds the bytes that `ref` names in their source. ValueError when they do not come next."""
        assert len(data) == ref.size_bytes, ref
        own = BlockRef(ref.stream_id, ref.start, ref.end, ref.entry_count, self._blocks_bytes, ref.size_bytes)
        row = self._row
        joined = None if row is None else _joined(row, own, self._row_bytes_max)
        if joined is None:
            self._check_next(own)
            self._seal_row()
        self._row = joined or own
        self._held += data
        self._blocks_bytes += ref.size_bytes

    def take(self) -> bytearray:
        """The blocks that were added since the last call."""
        held, self._held = self._held, bytearray()
        return held

    def finish(self) -> tuple[bytearray, int, tuple[StreamRange, ...]]:
        """The rest of the object, the size of all of it, and what it holds. Called once."""
        self._seal_row()
        if not self._rows:
            raise ValueError("an object needs at least one block")
        index = encode_index(bytes(self._rows))
        size_bytes = self._blocks_bytes + len(index) + FOOTER_BYTES
        rest = self.take()
        rest += index
        rest += encode_footer(Footer(self._blocks_bytes, len(index), size_bytes))
        return rest, size_bytes, tuple(self._ranges)

    def _check_next(self, own: BlockRef) -> None:
        row = self._row
        if row is None or own.stream_id > row.stream_id:
            return
        if own.stream_id < row.stream_id or own.start != row.end:
            where = f"stream {own.stream_id} at {own.start}"
            raise ValueError(f"{where} comes after stream {row.stream_id}, which ends at {row.end}")

    def _seal_row(self) -> None:
        row = self._row
        if row is None:
            return
        self._rows += encode_row(row)
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last.stream_id == row.stream_id:
            self._ranges[-1] = StreamRange(row.stream_id, last.start, row.end)
        else:
            self._ranges.append(StreamRange(StreamId(row.stream_id), row.start, row.end))


def _joined(row: BlockRef, own: BlockRef, bytes_max: int) -> BlockRef | None:
    """One row for both, or None when they must not share one."""
    size_bytes, count = row.size_bytes + own.size_bytes, row.entry_count + own.entry_count
    if own.stream_id != row.stream_id or own.start != row.end or size_bytes > min(bytes_max, INT32_MAX):
        return None
    if own.end - row.start > INT32_MAX or count > INT32_MAX:
        return None
    return BlockRef(row.stream_id, row.start, own.end, count, row.position, size_bytes)
