"""Entries of a block, found but not made until somebody reads them."""

from __future__ import annotations

import gc

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.protocol.crc32c import crc32c
from millrace.s3stream.ids import StreamId
from millrace.s3stream.objects.format import (
    BLOCK_HEADER_BYTES,
    BlockRef,
    decode_block,
    encode_block_header,
    encode_entry_header,
)
from millrace.s3stream.objects.packed import PackedBlock
from millrace.s3stream.read_accumulator import ReadAccumulator


def block_of(entries: list[tuple[int, int]], start: int = 0) -> tuple[BlockRef, memoryview]:
    """`entries`: how many offsets and how many bytes each."""
    parts: list[bytes] = []
    offset = start
    for count, size_bytes in entries:
        payload = bytes([offset % 251]) * size_bytes
        parts += [encode_entry_header(1, 0, offset, count, [payload]), payload]
        offset += count
    body = b"".join(parts)
    ref = BlockRef(StreamId(1), start, offset, len(entries), 0, BLOCK_HEADER_BYTES + len(body))
    return ref, memoryview(encode_block_header(ref, crc32c(body)) + body)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 60)), min_size=1, max_size=30
    ),  # no batch has no bytes
    st.integers(0, 170),
    st.integers(0, 170),
    st.integers(0, 2000),
    st.integers(1, 40),
)
def test_a_read_gets_what_an_accumulator_of_all_entries_gets(
    entries: list[tuple[int, int]], start: int, end: int, max_bytes: int, step_count: int
) -> None:
    """Only what may be taken is made, and nothing that would be is left out: an accumulator ends the same as
    from the whole block."""
    ref, data = block_of(entries, 10)
    packed = PackedBlock.of(ref, data)
    start = min(max(start, ref.start), ref.end - 1)
    few, whole = ReadAccumulator(1, start, end, max_bytes), ReadAccumulator(1, start, end, max_bytes)
    made = 0
    while not few.is_full and few.next_offset < ref.end:
        step = packed.entries(few.next_offset, few.end, few.left_bytes, step_count)
        few.take(step)
        made += len(step)
    first = next(place for place, entry in enumerate(decode_block(ref, data)) if entry.end > start)
    whole.take(decode_block(ref, data)[first:])
    assert few.entries == whole.entries
    assert (few.next_offset, few.left_bytes, few.is_full) == (
        whole.next_offset,
        whole.left_bytes,
        whole.is_full,
    )
    assert made <= len(few.entries) + 1
    assert packed.entries(ref.end, ref.end + 5, 100, 5) == []
    assert len(packed) == len(entries)


def test_ten_thousand_entries_are_nothing_to_the_collector_of_garbage() -> None:
    """A cached block is a handful of objects, however many entries it has: a full collection does not look
    through them."""
    ref, data = block_of([(1, 50)] * 10_000)
    gc.collect()
    before = len(gc.get_objects())
    packed = PackedBlock.of(ref, data)
    gc.collect()
    assert len(gc.get_objects()) - before < 1000, "one for each entry, or nearly"
    assert len(data) < packed.charge_bytes < 1.2 * len(data)
