"""Entries in, the parts of one object out. Pure; what is large is not copied: payloads go out as the views
they came.

Not here: which streams share an object, how the parts are put. What it keeps true: streams come in ascending
order, each with one range without overlap or gap; a block holds one stream and at most BLOCK_BYTES_MAX unless
it is one entry; every row's delta, count and size fit an i32. `add` costs two passes of CRC32C over the
bytes, the second, of large entries, while they are in the processor's cache: a caller on the event loop adds
a MiB or so at a time. The checksum of what is handed over comes of those passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millrace.protocol.crc32c import crc32c
from millrace.protocol.crc32c_join import crc32c_join
from millrace.protocol.dataclass import dataclass
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import StreamId, StreamRange, Writer
from millrace.s3stream.objects.format import (
    BLOCK_HEADER_BYTES,
    ENTRY_HEADER_BYTES,
    FOOTER_BYTES,
    INDEX_HEADER_BYTES,
    INT32_MAX,
    ROW_BYTES,
    SUMMED_FROM,
    BlockRef,
    Buffer,
    Entry,
    Footer,
    encode_block_header,
    encode_entry_header_of,
    encode_footer,
    encode_index,
    encode_row,
)

BLOCK_BYTES_MAX = 1 << 20
# Entries below this size are copied, neighbours into one piece: a put of a million small views costs more
# than the copy.
JOIN_BELOW_BYTES = 8192
# The sum of a smaller block is taken once more for that of all: the bytes are at hand, and a join by
# arithmetic costs more.
WALK_BELOW_BYTES = 64 << 10


class SummedParts(NamedTuple):
    """Bytes in pieces, and the CRC32C of all of them as they were when they were checked."""

    parts: list[Buffer]
    crc: int


@dataclass(frozen=True, slots=True)
class FinishedObject:
    """`parts` concatenated are the object, or its rest after `take_parts`, and `crc` is their CRC32C;
    `size_bytes` is the whole object's."""

    parts: list[Buffer]
    crc: int
    size_bytes: int
    ranges: tuple[StreamRange, ...]


class ObjectWriter:
    def __init__(self, block_bytes_max: int = BLOCK_BYTES_MAX, writer: Writer | None = None) -> None:
        """`writer`: whom the footer names; None is for a footer of version 1."""
        self._writer = writer
        self._block_bytes_max = block_bytes_max
        self._parts: list[Buffer] = []
        self._parts_sum = 0
        self._rows = bytearray()
        self._ranges: list[StreamRange] = []
        self._written_bytes = 0  # sealed blocks
        self._taken_bytes = 0  # of these, handed over
        # The open block: pieces that are summed, and small ones behind them that are to be one.
        self._pieces: list[Buffer] = []
        self._pieces_sum = 0
        self._small: list[Buffer] = []
        self._block_bytes = BLOCK_HEADER_BYTES
        self._block_entries = 0
        self._stream_id = -1
        self._range_start = 0
        self._block_start = 0
        self._next_offset = 0

    def add(self, stream_id: int, entries: Iterable[Entry]) -> None:
        """Adds entries that continue the stream, or begin a stream with a higher id. ValueError when they do
        neither; ObjectCorrupt when an entry's bytes no longer match the checksum it carries (nothing of it
        was taken)."""
        for entry in entries:
            if stream_id != self._stream_id:
                self._begin_stream(stream_id, entry.base_offset)
            elif entry.base_offset != self._next_offset:
                raise ValueError(
                    f"stream {stream_id} goes on at {entry.base_offset}, not {self._next_offset}"
                )
            self._add_entry(entry)

    @property
    def size_bytes(self) -> int:
        """Size of the object if it were finished now."""
        rows_bytes = len(self._rows) + (ROW_BYTES if self._block_entries else 0)
        open_bytes = self._block_bytes if self._block_entries else 0
        return self._written_bytes + open_bytes + INDEX_HEADER_BYTES + rows_bytes + FOOTER_BYTES

    @property
    def ready_bytes(self) -> int:
        """How many bytes `take_parts` would give."""
        return self._written_bytes - self._taken_bytes

    def take_parts(self) -> SummedParts:
        """Hands over the blocks sealed so far, for a multipart upload that starts before the end is known."""
        taken = SummedParts(self._parts, self._parts_sum)
        self._parts, self._parts_sum = [], 0
        self._taken_bytes = self._written_bytes
        return taken

    def finish(self) -> FinishedObject:
        """Seals the object; called once. An object without entries is refused: nobody could find it."""
        self._end_stream()
        if not self._rows:
            raise ValueError("an object needs at least one entry")
        index = encode_index(bytes(self._rows))
        size_bytes = self._written_bytes + len(index) + FOOTER_BYTES
        footer = encode_footer(Footer(self._written_bytes, len(index), size_bytes, self._writer))
        parts, parts_sum = self.take_parts()
        crc = crc32c(footer, crc32c(index, parts_sum))
        return FinishedObject([*parts, index, footer], crc, size_bytes, tuple(self._ranges))

    def _begin_stream(self, stream_id: int, start: int) -> None:
        if stream_id <= self._stream_id:
            raise ValueError(f"stream {stream_id} comes after stream {self._stream_id}")
        self._end_stream()
        self._stream_id = stream_id
        self._range_start = self._block_start = self._next_offset = start

    def _end_stream(self) -> None:
        self._seal_block()
        if self._next_offset > self._range_start:
            self._ranges.append(StreamRange(StreamId(self._stream_id), self._range_start, self._next_offset))

    def _add_entry(self, entry: Entry) -> None:
        """Hot, like the append: an entry of 64 KiB is a request."""
        data, base_offset, count = entry.data, entry.base_offset, entry.count
        length = len(data)
        payload_sum = crc32c(data[:SUMMED_FROM], crc32c(data[SUMMED_FROM:]))
        header = encode_entry_header_of(self._stream_id, entry.epoch, base_offset, count, length, payload_sum)
        if entry.crc is not None and entry.crc != int.from_bytes(header[-4:], "big"):
            raise ObjectCorrupt(
                f"entry of stream {self._stream_id} at offset {base_offset} changed in memory"
            )
        added_bytes = ENTRY_HEADER_BYTES + length
        if added_bytes > INT32_MAX - BLOCK_HEADER_BYTES:
            raise ValueError(f"entry of {added_bytes} bytes does not fit a block")
        end = base_offset + count
        if self._block_bytes + added_bytes > self._block_bytes_max or end - self._block_start > INT32_MAX:
            self._seal_block()
        self._small.append(header)
        if length < JOIN_BELOW_BYTES:
            self._small.append(data)
        else:
            self._join_small()
            self._pieces.append(data)
            self._pieces_sum = crc32c(data, self._pieces_sum)
        self._block_bytes += added_bytes
        self._block_entries += 1
        self._next_offset = end

    def _join_small(self) -> None:
        joined = b"".join(self._small)
        self._small = []
        self._pieces.append(joined)
        self._pieces_sum = crc32c(joined, self._pieces_sum)

    def _seal_block(self) -> None:
        if not self._block_entries:
            return
        if self._small:
            self._join_small()
        row = BlockRef(
            StreamId(self._stream_id),
            self._block_start,
            self._next_offset,
            self._block_entries,
            self._written_bytes,
            self._block_bytes,
        )
        header = encode_block_header(row, self._pieces_sum)
        self._parts += (header, *self._pieces)
        self._parts_sum = crc32c(header, self._parts_sum)
        if self._block_bytes < WALK_BELOW_BYTES:
            for piece in self._pieces:
                self._parts_sum = crc32c(piece, self._parts_sum)
        else:
            entries_bytes = self._block_bytes - BLOCK_HEADER_BYTES
            self._parts_sum = crc32c_join(self._parts_sum, self._pieces_sum, entries_bytes)
        self._rows += encode_row(row)
        self._written_bytes += self._block_bytes
        self._pieces, self._pieces_sum, self._block_bytes, self._block_entries = [], 0, BLOCK_HEADER_BYTES, 0
        self._block_start = self._next_offset
