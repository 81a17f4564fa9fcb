"""The joiner: whole blocks become one object that reads as the sources did, and blocks and rows whose numbers
fit."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocol.crc32c import crc32c
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import StreamId, StreamRange
from millrace.s3stream.objects.format import (
    BLOCK_HEADER_BYTES,
    FOOTER_BYTES,
    INT32_MAX,
    BlockRef,
    Entry,
    check_block,
    decode_block,
    decode_footer,
    encode_block_header,
)
from millrace.s3stream.objects.index import ObjectIndex
from millrace.s3stream.objects.joiner import ObjectJoiner
from millrace.s3stream.objects.writer import ObjectWriter


def object_of(stream_id: int, start: int, counts: list[int], block_bytes: int = 200) -> bytes:
    writer = ObjectWriter(block_bytes)
    for number, count in enumerate(counts):
        writer.add(
            stream_id, [Entry(start, count, memoryview(b"%d-%d" % (stream_id, number) * 10), epoch=number)]
        )
        start += count
    return b"".join(writer.finish().parts)


def index_of(data: bytes) -> ObjectIndex:
    footer = decode_footer(memoryview(data)[-FOOTER_BYTES:], len(data))
    return ObjectIndex(memoryview(data)[footer.index_position : -FOOTER_BYTES], footer.index_position)


def block_at(data: bytes, ref: BlockRef) -> memoryview:
    return memoryview(data)[ref.position : ref.position + ref.size_bytes]


def add_all(joiner: ObjectJoiner, data: bytes) -> None:
    for ref in index_of(data).rows():
        joiner.add(ref, block_at(data, ref), check_block(ref, block_at(data, ref)))


def entries_of(data: bytes) -> list[tuple[int, int, int, int, bytes]]:
    return [
        (ref.stream_id, entry.base_offset, entry.count, entry.epoch, bytes(entry.data))
        for ref in index_of(data).rows()
        for entry in decode_block(ref, block_at(data, ref))
    ]


def test_blocks_of_several_objects_become_one() -> None:
    """What is read from the new object is what the old ones held, entry by entry; few large blocks stand for
    many small ones."""
    sources = [object_of(3, 0, [2] * 30), object_of(3, 60, [1, 5, 1]), object_of(9, 7, [1] * 12)]
    joiner = ObjectJoiner(600)
    parts = []
    for source in sources:
        add_all(joiner, source)
        if joiner.ready_bytes > 2000:
            parts.append(joiner.take())
    rest, size_bytes, ranges = joiner.finish()
    joined = b"".join([*parts, rest])
    assert len(joined) == size_bytes
    assert len(parts) == 1
    assert entries_of(joined) == list(chain.from_iterable(map(entries_of, sources)))
    assert ranges == (StreamRange(StreamId(3), 0, 67), StreamRange(StreamId(9), 7, 19))
    rows = list(index_of(joined).rows())
    assert all(row.size_bytes <= 600 for row in rows)
    assert len(rows) < sum(index_of(source).count for source in sources) / 2
    assert len(joined) < sum(map(len, sources)) - 20 * BLOCK_HEADER_BYTES


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=5),
    st.integers(100, 1500),
    st.lists(st.booleans(), max_size=12),
)
def test_however_blocks_are_joined_the_entries_are_the_same(
    sources: list[list[int]], bytes_max: int, takes: list[bool]
) -> None:
    """Whatever the blocks' sizes, the bound, and where parts are taken: the object's blocks are sound and
    hold the same entries."""
    made: list[bytes] = []
    start = 5
    for counts in sources:
        made.append(object_of(1, start, counts))
        start += sum(counts)
    joiner, parts = ObjectJoiner(bytes_max), []
    for data, is_taken in zip(made, [*takes, *[False] * len(made)], strict=False):
        add_all(joiner, data)
        if is_taken:
            parts.append(joiner.take())
    rest, size_bytes, ranges = joiner.finish()
    joined = b"".join([*parts, rest])
    assert len(joined) == size_bytes
    assert ranges == (StreamRange(StreamId(1), 5, start),)
    assert entries_of(joined) == list(chain.from_iterable(map(entries_of, made)))


def test_a_damaged_block_stays_as_it_is() -> None:
    """It is joined with neither neighbour: those are read, and its readers are told what they were told
    before."""
    data = bytearray(object_of(3, 0, [1] * 9))
    refs = list(index_of(bytes(data)).rows())
    data[refs[1].position + 70] ^= 1
    joiner = ObjectJoiner(10_000)
    for ref in refs:
        block = block_at(bytes(data), ref)
        joiner.add(ref, block, None if ref is refs[1] else check_block(ref, block))
    rest, _, ranges = joiner.finish()
    joined = bytes(rest)
    rows = list(index_of(joined).rows())
    assert [(row.start, row.end) for row in rows] == [
        (0, refs[0].end),
        (refs[1].start, refs[1].end),
        (refs[1].end, 9),
    ]
    assert bytes(block_at(joined, rows[1])) == bytes(block_at(bytes(data), refs[1]))
    with pytest.raises(ObjectCorrupt, match="block checksum differs"):
        decode_block(rows[1], block_at(joined, rows[1]))
    assert (
        len(decode_block(rows[0], block_at(joined, rows[0])))
        + len(decode_block(rows[2], block_at(joined, rows[2])))
        == 7
    )
    assert ranges == (StreamRange(StreamId(3), 0, 9),)


def test_what_does_not_come_next_is_refused() -> None:
    """A gap, an overlap and a stream that is behind, whether blocks are held or were taken."""
    for wrong in (object_of(3, 3, [1]), object_of(3, 1, [1]), object_of(2, 2, [1])):
        for is_taken in (False, True):
            joiner = ObjectJoiner(600)
            add_all(joiner, object_of(3, 0, [2]))
            if is_taken:
                joiner.take()
            with pytest.raises(ValueError, match="comes after"):
                add_all(joiner, wrong)
    with pytest.raises(ValueError, match="at least one block"):
        ObjectJoiner(600).finish()


@pytest.mark.parametrize(
    ("counts", "entry_counts"),
    [
        ([INT32_MAX - 5, 5, 1], [1, 1, 1]),
        ([INT32_MAX, INT32_MAX], [1, 1]),
        ([1 << 30, 1 << 30, 1 << 30], [1, 1, 1]),
        ([10, 10], [INT32_MAX, 1]),
    ],
)
def test_joined_blocks_never_overflow_their_numbers(counts: list[int], entry_counts: list[int]) -> None:
    """Blocks whose offsets or entries together pass 2**31 - 1 are not joined: each offset is found again
    where it lies."""
    joiner = ObjectJoiner(1 << 20)
    start = 1 << 40
    for count, entry_count in zip(counts, entry_counts, strict=True):
        ref = BlockRef(StreamId(1), start, start + count, entry_count, 0, 50)
        data = memoryview(encode_block_header(ref, crc32c(bytes(10))) + bytes(10))
        joiner.add(ref, data, check_block(ref, data))
        start += count
    rest, size_bytes, ranges = joiner.finish()
    index = index_of(bytes(rest))
    assert size_bytes == len(rest)
    assert ranges == (StreamRange(StreamId(1), 1 << 40, start),)
    assert next(index.rows()).start == 1 << 40
    assert sum(row.entry_count for row in index.rows()) == sum(entry_counts)
    assert all(0 < row.end - row.start <= INT32_MAX for row in index.rows())
    assert all(check_block(row, block_at(bytes(rest), row)) for row in index.rows())
    offset = 1 << 40
    for count in counts:
        found = index.find(1, offset + count - 1, start, 1)
        assert found
        assert found[0].start <= offset + count - 1 < found[0].end
        offset += count
