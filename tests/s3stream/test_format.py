"""Byte layouts: round trips, bounds, and that no damaged byte passes."""

from __future__ import annotations

import struct
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocol.crc32c import crc32c
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import StreamId, StreamRange, Writer
from millrace.s3stream.objects.format import (
    BLOCK_HEADER_BYTES,
    ENTRY_HEADER_BYTES,
    FOOTER_BYTES,
    INT32_MAX,
    INT64_MAX,
    ROW_BYTES,
    SUMMED_FROM,
    BlockRef,
    Entry,
    EntryHeader,
    Footer,
    check_block,
    check_writer,
    decode_block,
    decode_entry,
    decode_footer,
    decode_index,
    encode_block_header,
    encode_entry_header,
    encode_entry_header_of,
    encode_footer,
    encode_index,
    encode_row,
    entry_at,
    scan_yielding,
    verify_yielding,
)
from millrace.s3stream.objects.index import ObjectIndex
from millrace.s3stream.objects.writer import ObjectWriter

GOLDEN = Path(__file__).parent.parent / "golden" / "object_v2.hex"
GOLDEN_3 = GOLDEN.with_name("object_v3.hex")
ids = st.integers(-(2**63), INT64_MAX)
payloads = st.lists(st.binary(max_size=40), max_size=4)


def every_check(ref: BlockRef, data: memoryview) -> list[Entry]:
    """What `decode_block` gives, after the checks of those who copy and of those who verify were seen to take
    and refuse the same bytes."""
    try:
        entries = decode_block(ref, data)
    except ObjectCorrupt:
        with pytest.raises(ObjectCorrupt):
            check_block(ref, data)
        with pytest.raises(ObjectCorrupt):
            deque(verify_yielding(ref, data))
        raise
    assert check_block(ref, data) == crc32c(data[BLOCK_HEADER_BYTES:])
    deque(verify_yielding(ref, data))
    return entries


def entry_bytes(stream_id: int, base_offset: int, count: int, payload: bytes, epoch: int = 1) -> bytes:
    return encode_entry_header(stream_id, epoch, base_offset, count, [payload]) + payload


def block_bytes(start: int, end: int, *entries: bytes) -> bytes:
    body = b"".join(entries)
    ref = BlockRef(StreamId(7), start, end, len(entries), 0, BLOCK_HEADER_BYTES + len(body))
    return encode_block_header(ref, crc32c(body)) + body


def ref_to(data: bytes, start: int, end: int, entry_count: int, stream_id: int = 7) -> BlockRef:
    return BlockRef(StreamId(stream_id), start, end, entry_count, 0, len(data))


ENTRIES = (entry_bytes(7, 100, 5, b"hello"), entry_bytes(7, 105, 1, b""), entry_bytes(7, 106, 10, b"world!"))
BLOCK = block_bytes(100, 116, *ENTRIES)
BLOCK_REF = ref_to(BLOCK, 100, 116, 3)
ROWS = b"".join(
    encode_row(BlockRef(StreamId(stream), start, start + 10, 2, position, 50))
    for stream, start, position in ((3, 0, 0), (3, 10, 50), (9, 5, 100))
)
INDEX = encode_index(ROWS)
FOOTER = encode_footer(Footer(150, len(INDEX), 150 + len(INDEX) + FOOTER_BYTES))
NAMED_FOOTER = encode_footer(Footer(150, len(INDEX), 150 + len(INDEX) + FOOTER_BYTES, Writer(1, 2)))


@given(ids, ids, st.integers(0, 2**40), st.integers(1, INT32_MAX), payloads, st.binary(max_size=20))
def test_an_entry_comes_back(
    stream_id: int, epoch: int, base_offset: int, count: int, parts: list[bytes], after: bytes
) -> None:
    """Header and payload survive, wherever the entry lies, and the next position is right."""
    payload = b"".join(parts)
    data = b"xyz" + encode_entry_header(stream_id, epoch, base_offset, count, parts) + payload + after
    header, found, end = decode_entry(memoryview(data), 3)
    assert header == EntryHeader(StreamId(stream_id), epoch, base_offset, count, len(payload), header.crc)
    assert header.end == base_offset + count
    assert found == payload
    assert end == 3 + ENTRY_HEADER_BYTES + len(payload) == len(data) - len(after)


@pytest.mark.parametrize(
    ("lead", "after", "is_walked"),
    [
        (ENTRY_HEADER_BYTES + SUMMED_FROM, b"", False),
        (ENTRY_HEADER_BYTES + SUMMED_FROM, b"x", True),
        (ENTRY_HEADER_BYTES, b"", True),
        (0, b"", True),
    ],
)
def test_bytes_that_were_summed_are_not_walked_again(lead: int, after: bytes, is_walked: bool) -> None:
    """The checksum of the container's tail counts where it is that of the entry's as well, and there alone:
    a wrong one is found out."""
    data = entry_bytes(7, 100, 5, b"payload" * 10) + after
    known_crc = crc32c(data[lead:])
    expected = decode_entry(memoryview(data), 0)
    assert decode_entry(memoryview(data), 0, lead, known_crc) == expected
    if is_walked:
        assert decode_entry(memoryview(data), 0, lead, known_crc ^ 1) == expected
    else:
        with pytest.raises(ObjectCorrupt, match="entry checksum differs"):
            decode_entry(memoryview(data), 0, lead, known_crc ^ 1)


@given(st.binary(min_size=SUMMED_FROM, max_size=SUMMED_FROM), st.binary(max_size=300))
def test_a_known_checksum_is_carried_on(lead: bytes, tail: bytes) -> None:
    """With the tail's own checksum given, the header is the one that a pass over all bytes gives."""
    known = encode_entry_header_of(7, 1, 5, 3, len(lead) + len(tail), crc32c(lead, crc32c(tail)))
    assert known == encode_entry_header(7, 1, 5, 3, [lead + tail])
    assert known == encode_entry_header(7, 1, 5, 3, [lead[:4], lead[4:], tail])


@pytest.mark.parametrize(
    ("base_offset", "count"),
    [(-1, 1), (0, 0), (0, -1), (0, INT32_MAX + 1), (INT64_MAX, 1), (INT64_MAX - 4, 5)],
)
def test_an_entry_out_of_bounds_is_refused(base_offset: int, count: int) -> None:
    """Counts fit an i32, ends an i64; the last offset that can be is taken."""
    with pytest.raises(ValueError, match="out of bounds"):
        encode_entry_header(1, 1, base_offset, count, [b"x"])
    encode_entry_header(1, 1, INT64_MAX - INT32_MAX, INT32_MAX, [b"x"])


def test_an_entry_too_long_is_refused() -> None:
    """A length that does not fit an i32 is refused before anything is packed."""
    with pytest.raises(ValueError, match="out of bounds"):
        encode_entry_header_of(1, 1, 0, 1, INT32_MAX + 1, 0)
    encode_entry_header_of(1, 1, 0, 1, INT32_MAX, 0)


def decode_block_again(data: bytes) -> object:
    return every_check(BLOCK_REF, memoryview(data))


DECODERS: list[tuple[str, bytes, Callable[[bytes], object]]] = [
    ("entry", entry_bytes(7, 100, 5, b"payload"), lambda data: decode_entry(memoryview(data), 0)),
    ("block", BLOCK, decode_block_again),
    ("index", INDEX, lambda data: decode_index(memoryview(data))),
    (
        "footer of a writer",
        NAMED_FOOTER,
        lambda data: decode_footer(memoryview(data), 150 + len(INDEX) + FOOTER_BYTES),
    ),
    ("footer", FOOTER, lambda data: decode_footer(memoryview(data), 150 + len(INDEX) + FOOTER_BYTES)),
]


@pytest.mark.parametrize(("name", "data", "decode"), DECODERS)
def test_no_damaged_byte_passes(name: str, data: bytes, decode: Callable[[bytes], object]) -> None:
    """One flipped bit anywhere, or an end cut off anywhere, is ObjectCorrupt."""
    decode(data)
    for place in range(len(data)):
        for bit in (1, 0x80):
            with pytest.raises(ObjectCorrupt):
                decode(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        with pytest.raises(ObjectCorrupt):
            decode(data[:place])


def resealed(data: bytes, place: int, patch: bytes, head_bytes: int, crc_place: int, body: bytes) -> bytes:
    """`data` patched, under a checksum that is right: what only a check of the values themselves can
    refuse."""
    head = bytearray(data[:head_bytes])
    head[place : place + len(patch)] = patch
    is_after = head[:2] in (b"ME", b"MR") and head[:4] != b"MRIX"
    crc = struct.pack(
        ">I", crc32c(bytes(head), crc32c(body)) if is_after else crc32c(body, crc32c(bytes(head)))
    )
    return bytes(head) + crc + data[crc_place + 4 :]


@pytest.mark.parametrize(
    ("name", "place", "patch", "reason"),
    [
        ("entry", 2, b"\x02", "version 2 is unknown"),
        ("entry", 3, b"\x01", "flags"),
        ("entry", 4, struct.pack(">i", 0), "out of bounds"),
        ("entry", 8, struct.pack(">i", -1), "exceeds"),
        ("entry", 28, struct.pack(">q", -1), "out of bounds"),
        ("entry", 28, struct.pack(">q", INT64_MAX), "out of bounds"),
        ("block", 4, b"\x01", "version 1 is unknown"),
        ("block", 5, b"\x01", "flags"),
        ("block", 6, b"\x01", "flags"),
        ("block", 8, struct.pack(">i", 2), "of 2 entries where the row says 3"),
        ("block", 12, struct.pack(">i", -1), "says -1 of entries"),
        ("block", 16, struct.pack(">q", 8), "block of stream 8"),
        ("block", 24, struct.pack(">q", 99), "99, 115. where"),
        ("block", 32, struct.pack(">i", 17), "100, 117. where"),
        ("index", 4, b"\x02", "version 2 is unknown"),
        ("index", 5, b"\x01", "flags"),
        ("index", 8, struct.pack(">i", 2), "says 2 rows"),
        ("footer", 12, b"\x03", "version 3 is unknown"),
        ("footer", 13, b"\x01", "flags"),
        ("footer", 24, b"\x01", "flags"),
        ("footer", 0, struct.pack(">q", 0), "does not end at the footer"),
        ("footer", 0, struct.pack(">q", 149), "does not end at the footer"),
        ("footer", 0, struct.pack(">qi", 0, 150 + len(INDEX)), "does not end at the footer"),
        ("footer", 0, struct.pack(">qi", -1, 151 + len(INDEX)), "does not end at the footer"),
        ("footer", 16, struct.pack(">q", 1), "says 1"),
    ],
)
def test_a_right_checksum_does_not_excuse_wrong_values(
    name: str, place: int, patch: bytes, reason: str
) -> None:
    """Versions, flags, counts and bounds are judged for themselves, and the reason says which."""
    _, data, decode = next(found for found in DECODERS if found[0] == name)
    head_bytes = {"entry": 36, "block": 36, "index": 12, "footer": 36}[name]
    body = b"" if name == "footer" else data[head_bytes + 4 :]
    with pytest.raises(ObjectCorrupt, match=reason):
        decode(resealed(data, place, patch, head_bytes, head_bytes, body))


def test_a_block_comes_back_as_views() -> None:
    """Entries of a block point into the bytes given, and carry epoch and checksum on."""
    entries = every_check(BLOCK_REF, memoryview(BLOCK))
    assert [(e.base_offset, e.count, bytes(e.data), e.epoch) for e in entries] == [
        (100, 5, b"hello", 1),
        (105, 1, b"", 1),
        (106, 10, b"world!", 1),
    ]
    assert all(entry.data.obj is BLOCK for entry in entries)
    assert entries[0].crc == decode_entry(memoryview(BLOCK), BLOCK_HEADER_BYTES)[0].crc


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        (ref_to(BLOCK, 100, 116, 3, stream_id=8), "of stream 7"),
        (ref_to(BLOCK, 99, 116, 3), r"where \[99, 116\) of 7 belongs"),
        (ref_to(BLOCK, 100, 117, 3), r"where \[100, 117\) of 7 belongs"),
        (ref_to(BLOCK, 100, 116, 4), "where the row says 4"),
        (ref_to(BLOCK + b"x", 100, 116, 3), "index names"),
    ],
)
def test_a_block_must_be_what_its_row_says(ref: BlockRef, reason: str) -> None:
    """A sound block under the wrong row (another stream, range, count or size) is refused: it was
    misdirected."""
    with pytest.raises(ObjectCorrupt, match=reason):
        every_check(ref, memoryview(BLOCK))


@pytest.mark.parametrize(
    ("end", "count", "entries", "reason"),
    [
        (4, 2, (entry_bytes(7, 0, 2, b"a"), entry_bytes(7, 3, 1, b"b")), "where 7 at 2 belongs"),
        (3, 2, (entry_bytes(7, 0, 2, b"a"), entry_bytes(7, 3, 1, b"b")), "where 7 at 2 belongs"),
        (2, 1, (entry_bytes(8, 0, 2, b"a"),), "of stream 8"),
        (4, 2, (entry_bytes(7, 0, 2, b"a"), entry_bytes(7, 2, 1, b"b")), "do not fill"),
        (3, 1, (entry_bytes(7, 0, 2, b"a"), entry_bytes(7, 2, 1, b"b")), "do not fill"),
        (3, 2, (entry_bytes(7, 0, 2, b"a"), entry_bytes(7, 2, 1, b"b")[:20]), "cut off"),
        (3, 2, (entry_bytes(7, 0, 2, b"a"), entry_bytes(7, 2, 1, b"b")[:-1]), "exceeds"),
    ],
)
def test_a_right_block_does_not_excuse_wrong_entries(
    end: int, count: int, entries: tuple[bytes, ...], reason: str
) -> None:
    """Entries that do not continue one another, of another stream, or that do not fill the block are
    corruption under a right checksum."""
    body = b"".join(entries)
    ref = BlockRef(StreamId(7), 0, end, count, 0, BLOCK_HEADER_BYTES + len(body))
    data = memoryview(encode_block_header(ref, crc32c(body)) + body)
    for check in (lambda: decode_block(ref, data), lambda: deque(verify_yielding(ref, data))):
        with pytest.raises(ObjectCorrupt, match=reason):
            check()


def test_verifying_looks_at_each_entry_itself() -> None:
    """An entry that was wrong before its block was made, and an empty one, do not hide behind the block's
    checksum."""
    wrong = bytearray(ENTRIES[0])
    wrong[-1] ^= 1
    data = block_bytes(100, 116, bytes(wrong), *ENTRIES[1:])
    with pytest.raises(ObjectCorrupt, match="entry checksum differs"):
        deque(verify_yielding(BLOCK_REF, memoryview(data)))
    empty = resealed(entry_bytes(7, 2, 1, b"b"), 4, struct.pack(">i", 0), 36, 36, b"b")
    data = block_bytes(0, 2, entry_bytes(7, 0, 2, b"a"), empty)
    with pytest.raises(ObjectCorrupt, match="out of bounds"):
        decode_block(ref_to(data, 0, 2, 2), memoryview(data))


@pytest.mark.parametrize(
    "row",
    [
        (1, -1, 5, 1, 0, 10),
        (1, 0, 0, 1, 0, 10),
        (1, 0, 5, 0, 0, 10),
        (1, 0, 5, 1, -1, 10),
        (1, 0, 5, 1, 0, 0),
        (1, 0, 5, 1, 91, 10),
    ],
)
def test_a_row_out_of_bounds_is_refused(row: tuple[int, ...]) -> None:
    """A row that reaches outside the blocks, or holds nothing, is corruption even under a right checksum."""
    index = ObjectIndex(memoryview(encode_index(struct.pack(">qqiiqi", *row))), 100)
    with pytest.raises(ObjectCorrupt, match="row 0"):
        index.find(1, 2, 3, 1)


def find_in_model(
    rows: list[BlockRef], stream_id: int, start: int, end: int, max_bytes: int
) -> list[BlockRef]:
    """What ObjectIndex.find promises, read off the rows one by one."""
    found: list[BlockRef] = []
    counted = 0
    for row in rows:
        is_wanted = row.stream_id == stream_id and row.end > start and row.start < end and start < end
        if not is_wanted or (found and counted >= max_bytes):
            continue
        if not found and row.start > start:
            return []
        found.append(row)
        counted += row.size_bytes if row.start >= start else 0
    return found


@st.composite
def indexes(draw: st.DrawFn) -> list[BlockRef]:
    rows: list[BlockRef] = []
    position = 0
    for stream_id in draw(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True).map(sorted)):
        start = draw(st.integers(0, 10))
        for _ in range(draw(st.integers(1, 5))):
            end = start + draw(st.integers(1, 4))
            size = draw(st.integers(1, 30))
            rows.append(BlockRef(StreamId(stream_id), start, end, 1, position, size))
            start, position = end, position + size
    return rows


@settings(max_examples=200)
@given(indexes(), st.data())
def test_search_agrees_with_a_walk(rows: list[BlockRef], data: st.DataObject) -> None:
    """The binary search over raw rows finds what a walk over all of them finds, near every edge there is."""
    near = data.draw(st.sampled_from(rows))
    stream_id = near.stream_id + data.draw(st.sampled_from((0, 0, 0, 0, -1, 1)))
    start = near.start + data.draw(st.integers(-1, 4))
    length = data.draw(st.integers(0, 25))
    sizes = [row.size_bytes for row in rows if row.stream_id == near.stream_id and row.start >= near.start]
    max_bytes = sum(sizes[: data.draw(st.integers(0, 3))]) + data.draw(st.integers(-1, 1))
    blocks_end = rows[-1].position + rows[-1].size_bytes
    index = ObjectIndex(memoryview(encode_index(b"".join(map(encode_row, rows)))), blocks_end)
    assert list(index.rows()) == rows
    assert index.count == len(rows)
    assert index.size_bytes == 16 + ROW_BYTES * len(rows)
    found = index.find(stream_id, start, start + length, max_bytes)
    assert found == find_in_model(rows, stream_id, start, start + length, max_bytes)


def test_a_search_stops_at_a_gap() -> None:
    """Blocks beyond a hole are not given as the continuation; the ranges show the hole."""
    rows = [BlockRef(StreamId(1), 0, 5, 1, 0, 10), BlockRef(StreamId(1), 6, 9, 1, 10, 10)]
    index = ObjectIndex(memoryview(encode_index(b"".join(map(encode_row, rows)))), 20)
    assert index.find(1, 0, 9, 1000) == rows[:1]
    assert index.find(1, 5, 9, 1000) == []
    assert index.ranges() == (StreamRange(StreamId(1), 0, 5), StreamRange(StreamId(1), 6, 9))


def golden_object(writer_named: Writer | None = None) -> bytes:
    writer = ObjectWriter(150, writer_named)
    writer.add(3, [Entry(0, 2, memoryview(b"first"), epoch=1), Entry(2, 1, memoryview(b""), epoch=2)])
    writer.add(3, [Entry(3, 100, memoryview(b"second block"), epoch=2)])
    writer.add(2**40, [Entry(2**50, 1, memoryview(bytes(range(32))), epoch=2**33)])
    return b"".join(writer.finish().parts)


def test_version_2_stays_readable_and_unchanged() -> None:
    """The object in tests/golden is what the writer makes today. A change of layout is a new version, beside
    a new file."""
    lines = GOLDEN.read_text(encoding="ascii").splitlines()
    golden = bytes.fromhex("".join(line.partition("#")[0] for line in lines))
    assert golden_object() == golden
    footer = decode_footer(memoryview(golden)[-FOOTER_BYTES:], len(golden))
    index = ObjectIndex(memoryview(golden)[footer.index_position : -FOOTER_BYTES], footer.index_position)
    found = [
        (ref.stream_id, entry.base_offset, entry.count, entry.epoch, bytes(entry.data))
        for ref in index.rows()
        for entry in every_check(ref, memoryview(golden)[ref.position : ref.position + ref.size_bytes])
    ]
    assert footer.writer is None
    check_writer(footer, 0)
    with pytest.raises(
        ObjectCorrupt, match=r"written by nobody that it names, and metadata names incarnation 0{15}7$"
    ):
        check_writer(footer, 7)
    assert found == [
        (3, 0, 2, 1, b"first"),
        (3, 2, 1, 2, b""),
        (3, 3, 100, 2, b"second block"),
        (2**40, 2**50, 1, 2**33, bytes(range(32))),
    ]


WRITER = Writer(3, -(2**60) - 5)


def test_version_3_stays_readable_and_unchanged() -> None:
    """With a writer the object is another in its footer alone: in its version, the node, the token and the
    sum."""
    lines = GOLDEN_3.read_text(encoding="ascii").splitlines()
    golden = bytes.fromhex("".join(line.partition("#")[0] for line in lines))
    assert golden_object(WRITER) == golden
    assert golden[:-FOOTER_BYTES] == golden_object()[:-FOOTER_BYTES]
    footer = decode_footer(memoryview(golden)[-FOOTER_BYTES:], len(golden))
    assert footer.writer == WRITER
    for token in (0, WRITER.token):
        check_writer(footer, token)
    with pytest.raises(
        ObjectCorrupt,
        match=r"by incarnation effffffffffffffb of node 3, and metadata names incarnation 0{15}7$",
    ):
        check_writer(footer, 7)


@pytest.mark.parametrize(
    ("version", "token", "said"), [(1, 9, "flags"), (2, 0, "flags"), (3, 9, "version 3 is unknown")]
)
def test_a_footer_is_of_one_version(version: int, token: int, said: str) -> None:
    """Version 1 names nobody and version 2 somebody: anything else is refused, under a sum that is right."""
    footer = bytearray(encode_footer(Footer(150, 50, 248, Writer(0, 9))))
    footer[12], footer[28:36] = version, token.to_bytes(8, "big")
    footer[36:40] = crc32c(footer[:36]).to_bytes(4, "big")
    with pytest.raises(ObjectCorrupt, match=said):
        decode_footer(memoryview(footer), 248)


def test_many_small_entries_are_scanned_in_chunks() -> None:
    """A block of a thousand entries stops after every 128, so that checking it never holds the loop for
    longer than that takes."""
    parts: list[bytes] = []
    for offset in range(1000):
        parts += [encode_entry_header(1, 0, offset, 1, [b"x" * 50]), b"x" * 50]
    body = b"".join(parts)
    ref = BlockRef(StreamId(1), 0, 1000, 1000, 0, BLOCK_HEADER_BYTES + len(body))
    data = memoryview(encode_block_header(ref, crc32c(body)) + body)
    bases, places = array("q"), array("I")
    assert [len(bases) for _ in scan_yielding(ref, data, bases, places)] == [
        128 * step for step in range(1, 8)
    ]
    assert list(bases) == list(range(1000))
    assert [entry_at(data, place) for place in places] == decode_block(ref, data)
