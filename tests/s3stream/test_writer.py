"""The object writer: where blocks are cut, what is copied, what is refused."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocol.crc32c import crc32c
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import StreamId, StreamRange
from millrace.s3stream.objects.format import (
    BLOCK_HEADER_BYTES,
    ENTRY_HEADER_BYTES,
    FOOTER_BYTES,
    INT32_MAX,
    Entry,
    decode_block,
    decode_footer,
    encode_entry_header,
)
from millrace.s3stream.objects.index import ObjectIndex
from millrace.s3stream.objects.writer import BLOCK_BYTES_MAX, JOIN_BELOW_BYTES, FinishedObject, ObjectWriter

Streams = dict[int, list[Entry]]
SIZES = st.integers(0, 300) | st.sampled_from([JOIN_BELOW_BYTES - 1, JOIN_BELOW_BYTES, 3 * JOIN_BELOW_BYTES])


def entry(base_offset: int, size: int = 1, count: int = 1, epoch: int = 1) -> Entry:
    return Entry(base_offset, count, memoryview(bytes([base_offset % 251]) * size), epoch)


def index_of(data: bytes) -> ObjectIndex:
    footer = decode_footer(memoryview(data)[-FOOTER_BYTES:], len(data))
    return ObjectIndex(memoryview(data)[footer.index_position : -FOOTER_BYTES], footer.index_position)


def read_all(data: bytes) -> list[tuple[int, int, int, int, bytes]]:
    """(stream, base offset, count, epoch, payload) of every entry, in the order of the index."""
    return [
        (ref.stream_id, e.base_offset, e.count, e.epoch, bytes(e.data))
        for ref in index_of(data).rows()
        for e in decode_block(ref, memoryview(data)[ref.position : ref.position + ref.size_bytes])
    ]


def write(steps: list[tuple[int, Entry]]) -> FinishedObject:
    writer = ObjectWriter()
    for stream_id, step in steps:
        writer.add(stream_id, [step])
    return writer.finish()


def whole(finished: FinishedObject) -> bytes:
    data = b"".join(finished.parts)
    assert len(data) == finished.size_bytes
    assert crc32c(data) == finished.crc
    return data


@st.composite
def streams(draw: st.DrawFn) -> Streams:
    found: Streams = {}
    for stream_id in draw(
        st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4, unique=True).map(sorted)
    ):
        offset = draw(st.integers(0, 2**40))
        found[stream_id] = []
        for count, size in draw(
            st.lists(st.tuples(st.integers(1, 2**31 - 1), SIZES), min_size=1, max_size=9)
        ):
            found[stream_id].append(entry(offset, size, count, epoch=offset % 3))
            offset += count
    return found


@settings(max_examples=200)
@given(streams(), st.integers(100, 700) | st.sampled_from([1 << 16, 3 << 16]))
def test_what_is_written_is_read(content: Streams, block_bytes_max: int) -> None:
    """Any streams come back entry for entry; blocks lie side by side, hold one stream, and keep their
    bounds."""
    writer = ObjectWriter(block_bytes_max)
    for stream_id, entries in content.items():
        writer.add(stream_id, entries[:2])
        writer.add(stream_id, entries[2:])
        expected_bytes = writer.size_bytes
    finished = writer.finish()
    data = whole(finished)
    assert finished.size_bytes == expected_bytes
    expected = [
        (s, e.base_offset, e.count, e.epoch, bytes(e.data)) for s, entries in content.items() for e in entries
    ]
    assert read_all(data) == expected
    rows = list(index_of(data).rows())
    assert rows[0].position == 0
    for row, after in pairwise(rows):
        assert row.position + row.size_bytes == after.position
        assert (row.stream_id, row.start) < (after.stream_id, after.start)
    for row in rows:
        assert row.end - row.start <= INT32_MAX
        assert row.size_bytes <= block_bytes_max or row.entry_count == 1
    ranges = tuple(
        StreamRange(StreamId(s), entries[0].base_offset, entries[-1].end) for s, entries in content.items()
    )
    assert finished.ranges == index_of(data).ranges() == ranges


def test_a_block_is_cut_when_the_next_entry_would_not_fit() -> None:
    """A block is filled to its bound exactly; one byte more begins the next; a larger entry stands alone."""
    payload = BLOCK_BYTES_MAX - BLOCK_HEADER_BYTES - ENTRY_HEADER_BYTES
    half = (payload - ENTRY_HEADER_BYTES) // 2
    sizes = [payload, half, half, half, half + 1, payload + 1, 1]
    writer = ObjectWriter()
    writer.add(1, [entry(offset, size) for offset, size in enumerate(sizes)])
    rows = list(index_of(whole(writer.finish())).rows())
    assert [row.entry_count for row in rows] == [1, 2, 1, 1, 1, 1]
    assert rows[0].size_bytes == rows[1].size_bytes == BLOCK_BYTES_MAX
    assert rows[4].size_bytes == BLOCK_BYTES_MAX + 1


def test_a_block_never_spans_more_offsets_than_an_i32() -> None:
    """Entries that cover two thousand million offsets each are cut apart, though they are small."""
    entries = [entry(number * INT32_MAX, count=INT32_MAX) for number in range(3)]
    writer = ObjectWriter()
    writer.add(1, entries)
    rows = list(index_of(whole(writer.finish())).rows())
    assert [(row.start, row.end) for row in rows] == [(e.base_offset, e.end) for e in entries]


def test_large_payloads_are_not_copied() -> None:
    """A payload of the joining size is among the parts as the very view that came in; smaller neighbours are
    joined."""
    large = [entry(offset, JOIN_BELOW_BYTES) for offset in range(5)]
    writer = ObjectWriter()
    writer.add(1, large)
    writer.add(2, [entry(offset, JOIN_BELOW_BYTES - 1) for offset in range(100)])
    finished = writer.finish()
    assert [part for part in finished.parts if isinstance(part, memoryview)] == [e.data for e in large]
    assert all(any(part is e.data for part in finished.parts) for e in large)
    assert len(finished.parts) == 1 + 2 * 5 + 2 + 2


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([(2, entry(0)), (1, entry(0))], "comes after"),
        ([(1, entry(0)), (2, entry(0)), (1, entry(1))], "comes after"),
        ([(1, entry(0)), (1, entry(2))], "goes on at 2, not 1"),
        ([(1, entry(0, count=5)), (1, entry(4))], "goes on at 4, not 5"),
        ([(1, entry(7)), (1, entry(7))], "goes on at 7, not 8"),
        ([(1, entry(0)), (1, Entry(1, 0, memoryview(b"x")))], "out of bounds"),
        ([(1, Entry(-1, 1, memoryview(b"x")))], "out of bounds"),
        ([], "at least one entry"),
    ],
)
def test_wrong_order_is_refused(steps: list[tuple[int, Entry]], reason: str) -> None:
    """Streams descend, offsets leave a gap or overlap, bounds are broken, nothing was added: no object comes
    of it."""
    with pytest.raises(ValueError, match=reason):
        write(steps)


def test_an_entry_that_changed_in_memory_is_refused() -> None:
    """Bytes that no longer match the checksum they came with do not reach the store; what was added before
    stands."""
    buffer = bytearray(b"as it came from the log")
    crc = int.from_bytes(encode_entry_header(1, 4, 1, 1, [buffer])[-4:], "big")
    writer = ObjectWriter()
    writer.add(1, [entry(0)])
    changed = Entry(1, 1, memoryview(buffer), epoch=4, crc=crc)
    buffer[3] ^= 1
    with pytest.raises(ObjectCorrupt, match="changed in memory"):
        writer.add(1, [changed])
    buffer[3] ^= 1
    writer.add(1, [changed])
    assert [found[1] for found in read_all(whole(writer.finish()))] == [0, 1]


def test_parts_can_be_taken_as_they_are_sealed() -> None:
    """For a multipart upload: what was taken and what finish gives make up the same object as finish
    alone."""
    content = {stream_id: [entry(offset, 100) for offset in range(20)] for stream_id in (1, 5)}
    one, other = ObjectWriter(512), ObjectWriter(512)
    taken: list[bytes] = []
    for stream_id, entries in content.items():
        one.add(stream_id, entries)
        for each in entries:
            other.add(stream_id, [each])
            if other.ready_bytes >= 1000:
                ready_bytes = other.ready_bytes
                parts, crc = other.take_parts()
                taken.append(b"".join(parts))
                assert (len(taken[-1]), crc32c(taken[-1])) == (ready_bytes, crc)
                assert other.ready_bytes == 0
    finished = other.finish()
    assert len(taken) == 4
    assert crc32c(b"".join(finished.parts)) == finished.crc
    assert b"".join([*taken, *finished.parts]) == whole(one.finish())
    assert finished.size_bytes == len(b"".join([*taken, *finished.parts]))
    assert [key for key, _ in groupby(finished.ranges, lambda r: r.stream_id)] == [1, 5]
