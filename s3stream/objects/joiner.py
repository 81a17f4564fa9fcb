"""Whole blocks in, the parts of one object out: what compaction writes with. Pure.

Blocks are copied as they are, headers and checksums included; the caller has checked them. A block that
continues the one before it is put into that one, up to `block_bytes_max` together: its entries are appended,
the checksum goes on over them, and the header of both is written when it is known what follows. So many small
uploads become few blocks and rows, and nothing looks at an entry. Not here: entries (writer.py).

Kept true: streams come in ascending order, each with one range without overlap or gap; every row's delta,
count and size fit an i32; a block that is known to be damaged stays as it is, for itself, so that its readers
are told.
"""

from __future__ import annotations

from millrace.protocol.crc32c import crc32c
from millrace.s3stream.ids import StreamId, StreamRange, Writer
from millrace.s3stream.objects.format import (
    BLOCK_HEADER_BYTES,
    FOOTER_BYTES,
    INT32_MAX,
    BlockRef,
    Footer,
    encode_block_header,
    encode_footer,
    encode_index,
    encode_row,
)


class ObjectJoiner:
    """`ready_bytes` are held until `take` hands them over."""

    def __init__(self, block_bytes_max: int, writer: Writer | None = None) -> None:
        self._writer = writer
        self._block_bytes_max = block_bytes_max
        self._held = bytearray()
        self._rows = bytearray()
        self._ranges: list[StreamRange] = []
        self._blocks_bytes = 0
        # The open block: the last of what is held.
        self._block: BlockRef | None = None
        self._block_place = 0
        self._body_sum: int | None = None
        self._is_joined = False

    @property
    def ready_bytes(self) -> int:
        return len(self._held)

    @property
    def rows(self) -> bytes:
        """The rows of all blocks, once it is finished."""
        return bytes(self._rows)

    def add(self, ref: BlockRef, data: memoryview, body_sum: int | None) -> None:
        """Adds the block that `ref` names in its source. `body_sum`: of its entries, as `check_block` gave
        it; None for a damaged one. ValueError when it does not come next."""
        assert len(data) == ref.size_bytes, ref
        block = self._block
        joined = _joined(block, ref, self._block_bytes_max) if block is not None else None
        if joined is None or body_sum is None or self._body_sum is None:
            self._open(ref, data, body_sum)
            return
        body = data[BLOCK_HEADER_BYTES:]
        self._block, self._is_joined = joined, True
        self._body_sum = crc32c(body, self._body_sum)
        self._held += body
        self._blocks_bytes += len(body)

    def take(self) -> bytearray:
        """The blocks that were added since the last call."""
        self._seal()
        held, self._held = self._held, bytearray()
        return held

    def finish(self) -> tuple[bytearray, int, tuple[StreamRange, ...]]:
        """The rest of the object, the size of all of it, and what it holds. Called once. Raises ValueError
        where no block was added."""
        rest = self.take()
        if not self._rows:
            raise ValueError("an object needs at least one block")
        index = encode_index(bytes(self._rows))
        size_bytes = self._blocks_bytes + len(index) + FOOTER_BYTES
        rest += index
        rest += encode_footer(Footer(self._blocks_bytes, len(index), size_bytes, self._writer))
        return rest, size_bytes, tuple(self._ranges)

    def _open(self, ref: BlockRef, data: memoryview, body_sum: int | None) -> None:
        self._seal()
        self._check_next(ref)
        self._block = BlockRef(
            ref.stream_id, ref.start, ref.end, ref.entry_count, self._blocks_bytes, ref.size_bytes
        )
        self._block_place, self._body_sum, self._is_joined = len(self._held), body_sum, False
        self._held += data
        self._blocks_bytes += ref.size_bytes

    def _check_next(self, ref: BlockRef) -> None:
        last = self._ranges[-1] if self._ranges else None
        if last is None or ref.stream_id > last.stream_id:
            return
        if ref.stream_id < last.stream_id or ref.start != last.end:
            where = f"stream {ref.stream_id} at {ref.start}"
            raise ValueError(f"{where} comes after stream {last.stream_id}, which ends at {last.end}")

    def _seal(self) -> None:
        block, self._block = self._block, None
        if block is None:
            return
        if self._is_joined:
            assert self._body_sum is not None
            place = self._block_place
            self._held[place : place + BLOCK_HEADER_BYTES] = encode_block_header(block, self._body_sum)
        self._rows += encode_row(block)
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last.stream_id == block.stream_id:
            self._ranges[-1] = StreamRange(block.stream_id, last.start, block.end)
        else:
            self._ranges.append(StreamRange(StreamId(block.stream_id), block.start, block.end))


def _joined(block: BlockRef, ref: BlockRef, bytes_max: int) -> BlockRef | None:
    """One block for both, or None when they must not share one."""
    size_bytes, count = (
        block.size_bytes + ref.size_bytes - BLOCK_HEADER_BYTES,
        block.entry_count + ref.entry_count,
    )
    if ref.stream_id != block.stream_id or ref.start != block.end or size_bytes > min(bytes_max, INT32_MAX):
        return None
    if ref.end - block.start > INT32_MAX or count > INT32_MAX:
        return None
    return BlockRef(block.stream_id, block.start, ref.end, count, block.position, size_bytes)
