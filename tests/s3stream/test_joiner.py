"""The joiner: whole blocks become one object that reads as the sources did, and rows whose numbers fit."""

from __future__ import annotations

from itertools import chain

import pytest

from millrace.s3stream.ids import StreamId, StreamRange
from millrace.s3stream.objects.format import FOOTER_BYTES, INT32_MAX, BlockRef, Entry, decode_blocks, decode_footer
from millrace.s3stream.objects.index import ObjectIndex
from millrace.s3stream.objects.joiner import ObjectJoiner
from millrace.s3stream.objects.writer import ObjectWriter


def object_of(stream_id: int, start: int, counts: list[int], block_bytes: int = 200) -> bytes:
    writer = ObjectWriter(block_bytes)
    for number, count in enumerate(counts):
        writer.add(stream_id, [Entry(start, count, memoryview(b"%d-%d" % (stream_id, number) * 10), epoch=number)])
        start += count
    return b"".join(writer.finish().parts)


def index_of(data: bytes) -> ObjectIndex:
    footer = decode_footer(memoryview(data)[-FOOTER_BYTES:], len(data))
    return ObjectIndex(memoryview(data)[footer.index_position : -FOOTER_BYTES], footer.index_position)


def add_all(joiner: ObjectJoiner, data: bytes) -> None:
    for ref in index_of(data).rows():
        joiner.add(ref, memoryview(data)[ref.position : ref.position + ref.size_bytes])


def entries_of(data: bytes) -> list[tuple[int, int, int, int, bytes]]:
    return [
        (ref.stream_id, entry.base_offset, entry.count, entry.epoch, bytes(entry.data))
        for ref in index_of(data).rows()
        for entry in decode_blocks(ref, memoryview(data)[ref.position : ref.position + ref.size_bytes])
    ]


def test_blocks_of_several_objects_become_one() -> None:
    """What is read from the new object is what the old ones held, entry by entry; few rows stand for many blocks."""
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


def test_what_does_not_come_next_is_refused() -> None:
    """A gap, an overlap and a stream that is behind."""
    for wrong in (object_of(3, 3, [1]), object_of(3, 1, [1]), object_of(2, 2, [1])):
        joiner = ObjectJoiner(600)
        add_all(joiner, object_of(3, 0, [2]))
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
def test_joined_rows_never_overflow_their_numbers(counts: list[int], entry_counts: list[int]) -> None:
    """Rows whose offsets or entries together pass 2**31 - 1 are not joined: each offset is found again where it lies."""
    joiner = ObjectJoiner(1 << 20)
    start = 1 << 40
    for count, entry_count in zip(counts, entry_counts, strict=True):
        joiner.add(BlockRef(StreamId(1), start, start + count, entry_count, 0, 50), bytes(50))
        start += count
    rest, size_bytes, ranges = joiner.finish()
    index = index_of(bytes(rest))
    assert size_bytes == len(rest)
    assert ranges == (StreamRange(StreamId(1), 1 << 40, start),)
    assert next(index.rows()).start == 1 << 40
    assert sum(row.entry_count for row in index.rows()) == sum(entry_counts)
    assert all(0 < row.end - row.start <= INT32_MAX for row in index.rows())
    offset = 1 << 40
    for count in counts:
        found = index.find(1, offset + count - 1, start, 1)
        assert found
        assert found[0].start <= offset + count - 1 < found[0].end
        offset += count
