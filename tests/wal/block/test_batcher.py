"""The open block: records are copied in, places follow one another, and a closed block is aligned, sealed and
zero-padded."""

from __future__ import annotations

import pytest

from millrace.protocol.crc32c import crc32c
from millrace.wal.block.batcher import Batcher
from millrace.wal.block.layout import BLOCK_BYTES, decode_block_header
from millrace.wal.record import RECORD_HEADER_BYTES, decode_record, epoch_seed


def batcher_at(position: int, arena: bytearray) -> Batcher:
    batcher = Batcher(5, position)
    batcher.use_arena(memoryview(arena))
    return batcher


def test_a_block_holds_its_records() -> None:
    """Header, records in order, each at the place that was given, and zeros to the end of the page."""
    batcher = batcher_at(BLOCK_BYTES, bytearray(b"\xff" * 4 * BLOCK_BYTES))
    batcher.open_block(BLOCK_BYTES, 2 * BLOCK_BYTES)
    records = [
        batcher.add((b"ab", bytearray(b"cd"), memoryview(b"ef")), 6),
        batcher.add((), 0),
        batcher.add((b"z",), 1),
        batcher.add((b"lead", b"the tail"), 12, crc32c(b"the tail")),
    ]
    assert [bytes(record.payload) for record in records] == [b"abcdef", b"", b"z", b"leadthe tail"]
    assert [record.position for record in records] == [4096 + 64, 4096 + 94, 4096 + 118, 4096 + 143]
    assert batcher.open_bytes == 64 + 4 * RECORD_HEADER_BYTES + 19
    block = batcher.close_block()
    block.stamp(777)
    header = decode_block_header(block.view, 0)
    assert header is not None
    assert (header.epoch, header.position, header.previous_end) == (5, 4096, 4096)
    assert (header.confirmed, header.record_count, header.end) == (777, 4, 8192)
    assert not any(block.view[header.length :])
    for record in records:
        found = decode_record(
            block.view, record.position - 4096, header.length, record.position, epoch_seed(5)
        )
        assert found is not None
        assert found.payload == record.payload


def test_closed_means_nothing_fits() -> None:
    """With no block open the limit is zero, so that every append asks for a place first."""
    batcher = batcher_at(0, bytearray(4 * BLOCK_BYTES))
    assert batcher.limit == 0
    batcher.open_block(0, BLOCK_BYTES)
    batcher.add((b"x",), 1)
    assert batcher.limit == BLOCK_BYTES
    assert batcher.next_position == BLOCK_BYTES
    batcher.close_block()
    assert (batcher.limit, batcher.open_bytes, batcher.is_open, batcher.tail) == (0, 0, False, BLOCK_BYTES)


def test_blocks_follow_one_another_in_the_arena() -> None:
    """The next block begins on the next page of the same arena; one that is placed further on links back."""
    batcher = batcher_at(0, bytearray(4 * BLOCK_BYTES))
    batcher.open_block(0, 3 * BLOCK_BYTES)
    batcher.add((bytes(5000),), 5000)
    assert batcher.close_block().end == 2 * BLOCK_BYTES
    assert batcher.arena_bytes_left == 2 * BLOCK_BYTES
    batcher.open_block(10 * BLOCK_BYTES, BLOCK_BYTES)
    batcher.add((b"x",), 1)
    block = batcher.close_block()
    assert (block.position, block.previous_end, block.end) == (
        10 * BLOCK_BYTES,
        2 * BLOCK_BYTES,
        11 * BLOCK_BYTES,
    )


def test_payload_views_are_read_only() -> None:
    """Whoever holds a record cannot change what is about to be written."""
    batcher = batcher_at(0, bytearray(BLOCK_BYTES))
    batcher.open_block(0, BLOCK_BYTES)
    record = batcher.add((b"abc",), 3)
    with pytest.raises(TypeError):
        record.payload[0] = 1


def test_a_block_larger_than_the_arena_is_a_bug() -> None:
    """The caller changes arenas first."""
    batcher = batcher_at(0, bytearray(BLOCK_BYTES))
    with pytest.raises(AssertionError):
        batcher.open_block(0, 2 * BLOCK_BYTES)
