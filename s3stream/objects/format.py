"""Byte layouts of entries, data blocks, index blocks and footers. Pure: bytes in, values out, and back.

An object is data blocks, one index block, one footer; docs/formats/objects.md draws it. All numbers are
big-endian.

    entry   40 B  "ME" | version u8 | flags u8 | count i32 | length i32 | stream i64 | epoch i64 | base offset
                  i64 |
    crc
                  then `length` bytes of payload. crc: the payload from byte 21 on, its first 21 bytes, then
                  the 36 bytes before the crc
    block   40 B  "MRDB" | version u8 | flags u8 | zero u16 | entry count i32 | length i32 | stream i64 |
                  start i64 |
                  end delta i32 | crc
                  then `length` bytes of entries, of one stream, without a gap. crc: those entries, then the
                  36 bytes before it
    index   16 B  "MRIX" | version u8 | flags u8 | zero u16 | row count i32 | crc, then rows. crc: the 12
                  bytes
                  before it, then the rows
      row   36 B  stream i64 | start i64 | end delta i32 | entry count i32 | position i64 | size i32; by
                  (stream,
      start)
    footer  48 B  index position i64 | index size i32 | version u8 | flags u8 | zero u16 | object size i64 |
                  node i32 | writer's token i64 | crc | "MILLRACE". crc: the 36 bytes before it. In version 1
                  node and
                  token are zero

An entry is also what the WAL keeps as its payload, so that bytes carry the sum with which they arrived to the
end: a Kafka batch's own checksum, verified on arrival, is over its bytes from 21 on, and the entry's
continues it. A block's sum is over all of it, so that who reads or copies a block checks it in one pass,
whatever the number of its entries; it begins with the entries, so that those of two blocks become one block
by continuing the first one's sum. Every decoder here checks magic, version, bounds and checksum, and raises
ObjectCorrupt; it never allocates by a length it has not checked. Not here: where blocks are cut (writer.py),
how bytes are fetched (reader.py).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence

from millrace.protocol.crc32c import crc32c
from millrace.protocol.dataclass import dataclass
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import StreamId, Writer, token_text

Buffer = bytes | bytearray | memoryview

VERSION = 1
BLOCK_VERSION = 2
WRITER_VERSION = 2  # of a footer that names who wrote the object
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

ENTRY_MAGIC = 0x4D45
BLOCK_MAGIC = b"MRDB"
INDEX_MAGIC = b"MRIX"
FOOTER_MAGIC = b"MILLRACE"

# Where the checksum of a payload begins; the bytes before come after the rest.
SUMMED_FROM = 21

# How many entries are looked at before others may run: a fifth of a millisecond.
ENTRIES_PER_CHUNK = 128

_ENTRY_HEAD = struct.Struct(">HBBiiqqq")
_ENTRY = struct.Struct(">HBBiiqqqI")
_ENTRY_QUICK = struct.Struct(">IiiqqqI")  # the same, magic, version and flags in one
_ENTRY_WORD = ENTRY_MAGIC << 16 | VERSION << 8
_BLOCK_HEAD = struct.Struct(">4sBBHiiqqi")
_BLOCK = struct.Struct(">4sBBHiiqqiI")
_INDEX_HEAD = struct.Struct(">4sBBHi")
_INDEX = struct.Struct(">4sBBHiI")
_FOOTER_HEAD = struct.Struct(">qiBBHqiq")
_FOOTER = struct.Struct(">qiBBHqiqI8s")
_CRC = struct.Struct(">I")
ROW = struct.Struct(">qqiiqi")

ENTRY_HEADER_BYTES = _ENTRY.size
BLOCK_HEADER_BYTES = _BLOCK.size
INDEX_HEADER_BYTES = _INDEX.size
ROW_BYTES = ROW.size
FOOTER_BYTES = _FOOTER.size
_ENTRY_HEAD_BYTES = _ENTRY_HEAD.size
_BLOCK_HEAD_BYTES = _BLOCK_HEAD.size
_INDEX_HEAD_BYTES = _INDEX_HEAD.size
assert (ENTRY_HEADER_BYTES, BLOCK_HEADER_BYTES, INDEX_HEADER_BYTES, ROW_BYTES, FOOTER_BYTES) == (
    40,
    40,
    16,
    36,
    48,
)


@dataclass(slots=True)
class EntryHeader:
    """An entry's header as decoded. It covers the offsets [base_offset, end)."""

    stream_id: StreamId
    epoch: int
    base_offset: int
    count: int
    length_bytes: int
    crc: int

    @property
    def end(self) -> int:
        return self.base_offset + self.count


@dataclass(slots=True)
class Entry:
    """An entry of a stream that the context names: offsets [base_offset, end), and a view that pins its
    buffer.

    `crc` is the stored checksum when the bytes came with one (WAL, object): the writer then checks them
    against it.
    """

    base_offset: int
    count: int
    data: memoryview
    epoch: int = 0
    crc: int | None = None

    @property
    def end(self) -> int:
        return self.base_offset + self.count


@dataclass(frozen=True, slots=True)
class BlockRef:
    """One row of an index: the block that holds [start, end) of a stream, and where it lies."""

    stream_id: StreamId
    start: int
    end: int
    entry_count: int
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Footer:
    index_position: int
    index_size_bytes: int
    object_size_bytes: int
    writer: Writer | None = None  # None: version 1, which names nobody


def encode_entry_header(
    stream_id: int, epoch: int, base_offset: int, count: int, parts: Sequence[Buffer]
) -> bytes:
    """The 40 bytes that precede the concatenation of `parts` (flat views of bytes), checksum included."""
    payload = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
    return encode_entry_header_of(stream_id, epoch, base_offset, count, len(payload), _payload_sum(payload))


def encode_entry_header_of(
    stream_id: int, epoch: int, base_offset: int, count: int, length: int, payload_sum: int
) -> bytes:
    """As `encode_entry_header`, for a payload of `length` bytes whose checksum, from SUMMED_FROM on and then
    of what is before it, is known. Raises ValueError for a base offset, count or length out of bounds."""
    if not (0 < count <= INT32_MAX and length <= INT32_MAX and 0 <= base_offset <= INT64_MAX - count):
        raise ValueError(f"entry out of bounds: base offset {base_offset}, count {count}, length {length}")
    head = _ENTRY_HEAD.pack(ENTRY_MAGIC, VERSION, 0, count, length, stream_id, epoch, base_offset)
    return head + _CRC.pack(crc32c(head, payload_sum))


def _payload_sum(payload: memoryview) -> int:
    return crc32c(payload[:SUMMED_FROM], crc32c(payload[SUMMED_FROM:]))


def decode_entry(
    view: memoryview, position: int, known_from: int = 0, known_crc: int | None = None
) -> tuple[EntryHeader, memoryview, int]:
    """Header, payload as a view, and the position after it. Raises ObjectCorrupt where it is damaged.
    `known_crc`: the CRC32C of the view from `known_from` on, just taken of these bytes; where the entry's own
    sum begins there, they are not walked again."""
    if position < 0 or len(view) - position < ENTRY_HEADER_BYTES:
        raise ObjectCorrupt("entry header is cut off", position)
    magic, version, flags, count, length, stream_id, epoch, base_offset, crc = _ENTRY.unpack_from(
        view, position
    )
    _expect("entry", magic == ENTRY_MAGIC, version, flags, position)
    start = position + ENTRY_HEADER_BYTES
    end = start + length
    if length < 0 or end > len(view):
        raise ObjectCorrupt(f"entry length {length} exceeds its container", position)
    payload = view[start:end]
    if known_crc is not None and known_from == start + SUMMED_FROM and end == len(view):
        payload_sum = crc32c(payload[:SUMMED_FROM], known_crc)
    else:
        payload_sum = _payload_sum(payload)
    if crc32c(view[position : position + _ENTRY_HEAD_BYTES], payload_sum) != crc:
        raise ObjectCorrupt("entry checksum differs", position)
    if count <= 0 or base_offset < 0 or base_offset > INT64_MAX - count:
        raise ObjectCorrupt(f"entry base offset {base_offset} and count {count} are out of bounds", position)
    return EntryHeader(StreamId(stream_id), epoch, base_offset, count, length, crc), payload, end


def encode_block_header(ref: BlockRef, body_sum: int) -> bytes:
    """The 40 bytes that precede a block's entries, of which `body_sum` is the checksum."""
    length = ref.size_bytes - BLOCK_HEADER_BYTES
    assert 0 < ref.entry_count <= INT32_MAX
    assert 0 < length <= INT32_MAX - BLOCK_HEADER_BYTES
    head = _BLOCK_HEAD.pack(
        BLOCK_MAGIC,
        BLOCK_VERSION,
        0,
        0,
        ref.entry_count,
        length,
        ref.stream_id,
        ref.start,
        ref.end - ref.start,
    )
    return head + _CRC.pack(crc32c(head, body_sum))


def check_block(ref: BlockRef, data: memoryview) -> int:
    """The checksum of the entries, after the block was found to be whole and the one that its row names. In
    one pass, without a look at entries: for bytes that are copied as they are. Raises ObjectCorrupt where it
    is not."""
    if len(data) != ref.size_bytes:
        raise ObjectCorrupt(f"{len(data)} bytes where the index names {ref.size_bytes}")
    if len(data) < BLOCK_HEADER_BYTES:
        raise ObjectCorrupt("block header is cut off")
    magic, version, flags, zero, entry_count, length, stream_id, start, delta, crc = _BLOCK.unpack_from(
        data, 0
    )
    _expect("block", magic == BLOCK_MAGIC, version, flags | zero, 0, BLOCK_VERSION)
    if length != len(data) - BLOCK_HEADER_BYTES:
        raise ObjectCorrupt(f"block of {len(data)} bytes says {length} of entries")
    body_sum = crc32c(data[BLOCK_HEADER_BYTES:])
    if crc32c(data[:_BLOCK_HEAD_BYTES], body_sum) != crc:
        raise ObjectCorrupt("block checksum differs")
    if (stream_id, start, start + delta) != (ref.stream_id, ref.start, ref.end):
        found = f"block of stream {stream_id} [{start}, {start + delta})"
        raise ObjectCorrupt(f"{found} where [{ref.start}, {ref.end}) of {ref.stream_id} belongs")
    if entry_count != ref.entry_count:
        raise ObjectCorrupt(f"block of {entry_count} entries where the row says {ref.entry_count}")
    return body_sum


def decode_block(ref: BlockRef, data: memoryview) -> list[Entry]:
    """All entries of a block, as views of `data`, which is exactly its bytes."""
    bases, places = array("q"), array("I")
    for _ in scan_yielding(ref, data, bases, places):
        pass
    return [entry_at(data, place) for place in places]


def scan_yielding(ref: BlockRef, data: memoryview, bases: array[int], places: array[int]) -> Iterator[None]:
    """Checks all that `decode_block` does, and adds where each entry begins: its base offset, and its place
    in `data`. Stops after every ENTRIES_PER_CHUNK of them, so that others may run. The block's checksum
    speaks for those of the entries. Raises ObjectCorrupt where the entries do not fill the row."""
    check_block(ref, data)
    unpack, stream_id, body_end = _ENTRY_QUICK.unpack_from, ref.stream_id, len(data)
    position, next_offset, step_end = BLOCK_HEADER_BYTES, ref.start, ENTRIES_PER_CHUNK
    while position < body_end:
        start = position + ENTRY_HEADER_BYTES
        if start > body_end:
            raise ObjectCorrupt("entry header is cut off", position)
        word, count, length, found_id, _, base_offset, _ = unpack(data, position)
        end = start + length
        is_sound = word == _ENTRY_WORD and start <= end <= body_end and count > 0
        if not is_sound or found_id != stream_id or base_offset != next_offset:
            raise _misfit(ref, data, position, next_offset)
        bases.append(base_offset)
        places.append(position)
        next_offset, position = next_offset + count, end
        if len(bases) >= step_end:
            step_end += ENTRIES_PER_CHUNK
            yield
    if next_offset != ref.end or len(bases) != ref.entry_count:
        raise ObjectCorrupt(f"{len(bases)} entries do not fill the row's {ref.entry_count} up to {ref.end}")


def entry_at(data: memoryview, place: int) -> Entry:
    """An entry of a block that was scanned: not checked again."""
    _, count, length, _, epoch, base_offset, crc = _ENTRY_QUICK.unpack_from(data, place)
    start = place + ENTRY_HEADER_BYTES
    return Entry(base_offset, count, data[start : start + length], epoch, crc)


def verify_yielding(ref: BlockRef, data: memoryview) -> Iterator[None]:
    """All that `decode_block` checks, and each entry's own checksum. Stops after every ENTRIES_PER_CHUNK
    entries, so that others may run."""
    bases, places = array("q"), array("I")
    yield from scan_yielding(ref, data, bases, places)
    for number, place in enumerate(places):
        decode_entry(data, place)
        if not (number + 1) % ENTRIES_PER_CHUNK:
            yield


def _misfit(ref: BlockRef, body: memoryview, position: int, next_offset: int) -> ObjectCorrupt:
    """What is wrong with the entry at `position`."""
    try:
        header, _, _ = decode_entry(body, position)
    except ObjectCorrupt as error:
        return error
    found = f"entry of stream {header.stream_id} at offset {header.base_offset}"
    return ObjectCorrupt(f"{found} where {ref.stream_id} at {next_offset} belongs", position)


def encode_row(ref: BlockRef) -> bytes:
    return ROW.pack(
        ref.stream_id, ref.start, ref.end - ref.start, ref.entry_count, ref.position, ref.size_bytes
    )


def encode_index(rows: bytes) -> bytes:
    """The index block around encoded rows, which must be sorted by (stream, start)."""
    count, rest = divmod(len(rows), ROW_BYTES)
    assert rest == 0
    assert 0 < len(rows) <= INT32_MAX - INDEX_HEADER_BYTES
    head = _INDEX_HEAD.pack(INDEX_MAGIC, VERSION, 0, 0, count)
    return head + _CRC.pack(crc32c(rows, crc32c(head))) + rows


def decode_index(data: memoryview) -> memoryview:
    """The rows of an index block as one view, checked by sum and count; `data` is exactly the index block.
    Raises ObjectCorrupt where it is damaged."""
    if len(data) < INDEX_HEADER_BYTES:
        raise ObjectCorrupt("index header is cut off")
    magic, version, flags, zero, count, crc = _INDEX.unpack_from(data, 0)
    _expect("index", magic == INDEX_MAGIC, version, flags | zero, 0)
    rows = data[INDEX_HEADER_BYTES:]
    if crc32c(rows, crc32c(data[:_INDEX_HEAD_BYTES])) != crc:
        raise ObjectCorrupt("index checksum differs")
    if count <= 0 or len(rows) != count * ROW_BYTES:
        raise ObjectCorrupt(f"index of {len(rows)} bytes says {count} rows")
    return rows


def encode_footer(footer: Footer, magic: bytes = FOOTER_MAGIC) -> bytes:
    version, node_id, token = VERSION, 0, 0
    if footer.writer is not None:
        version, node_id, token = WRITER_VERSION, footer.writer.node_id, footer.writer.token
        assert token, "a writer without a token"
    place, index_size = footer.index_position, footer.index_size_bytes
    head = _FOOTER_HEAD.pack(place, index_size, version, 0, 0, footer.object_size_bytes, node_id, token)
    return head + _CRC.pack(crc32c(head)) + magic


def decode_footer(data: memoryview, object_size_bytes: int, expected_magic: bytes = FOOTER_MAGIC) -> Footer:
    """`data` is the last 48 bytes of an object of that size. Raises ObjectCorrupt where it is damaged, or of
    an object of another size."""
    if len(data) != FOOTER_BYTES:
        raise ObjectCorrupt("footer is cut off")
    index_position, index_size, version, flags, zero, object_size, node_id, token, crc, magic = (
        _FOOTER.unpack(data)
    )
    is_named = version == WRITER_VERSION
    zeros = flags | zero | (not token if is_named else node_id | token)
    _expect("footer", magic == expected_magic, version, zeros, 0, WRITER_VERSION if is_named else VERSION)
    if crc32c(data[: _FOOTER_HEAD.size]) != crc:
        raise ObjectCorrupt("footer checksum differs")
    if object_size != object_size_bytes:
        raise ObjectCorrupt(f"object of {object_size_bytes} bytes says {object_size}")
    if index_position <= 0 or index_size <= 0 or index_position + index_size + FOOTER_BYTES != object_size:
        raise ObjectCorrupt(f"index of {index_size} bytes at {index_position} does not end at the footer")
    return Footer(index_position, index_size, object_size, Writer(node_id, token) if is_named else None)


def check_writer(footer: Footer, token: int) -> None:
    """The object was written by whom metadata names for it. `token` 0: metadata names nobody, and nothing is
    checked. Else raises ObjectCorrupt."""
    if token and (footer.writer is None or footer.writer.token != token):
        found = "nobody that it names" if footer.writer is None else str(footer.writer)
        raise ObjectCorrupt(f"it was written by {found}, and metadata names incarnation {token_text(token)}")


def _expect(what: str, is_magic: bool, version: int, zeros: int, position: int, known: int = VERSION) -> None:
    if not is_magic:
        raise ObjectCorrupt(f"{what} magic is missing", position)
    if version != known:
        raise ObjectCorrupt(f"{what} version {version} is unknown", position)
    if zeros:
        raise ObjectCorrupt(f"{what} flags are set that version {version} does not know", position)
