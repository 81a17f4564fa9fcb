"""The open batch: records are packed over as many arenas as it takes, and places follow one another through
headers and batches. And the pace."""

from __future__ import annotations

import pytest

from millrace.protocol.crc32c import crc32c
from millrace.runtime.rand import Rand
from millrace.wal.object.batcher import GATHER_MS, LONGEST_MS, Batcher, wait_ms
from millrace.wal.object.layout import HEADER_BYTES, Place
from millrace.wal.object.space import LiveObjects, payload_room
from millrace.wal.record import RECORD_HEADER_BYTES, decode_record, epoch_seed


def test_batches_are_packed_over_arenas() -> None:
    """By chance over many batches and arenas: joined stretches hold the records one behind another, each at
    the place that was given."""
    rand, batcher, position, slot = Rand(b"pack"), Batcher(5, 1000), 1000, 0
    for _ in range(200):
        sent = []
        for _ in range(rand.below(6)):
            data = rand.uuid() * rand.below(9)
            if batcher.arena_bytes_left < len(data) + RECORD_HEADER_BYTES:
                batcher.use_arena(memoryview(bytearray(200 + rand.below(300))))
            body_bytes = batcher.body_bytes
            record = (
                batcher.add((data[:5], data[5:]), len(data), crc32c(data[5:]))
                if rand.below(2)
                else batcher.add((data,), len(data))
            )
            assert batcher.body_bytes == body_bytes + RECORD_HEADER_BYTES + len(data)
            assert record.end == batcher.next_position
            sent.append((record, data))
        batch = batcher.close()
        body = memoryview(b"".join(batch.parts))
        assert (batch.slot, batch.position, batch.record_count) == (slot, position, len(sent))
        assert len(body) == batch.body_bytes == batch.end - position - HEADER_BYTES
        for record, data in sent:
            at = record.position - position - HEADER_BYTES
            found = decode_record(body, at, len(body), record.position, epoch_seed(5))
            assert found is not None
            assert bytes(found.payload) == data == bytes(record.payload)
        position, slot = batch.end, slot + 1
        assert (batcher.position, batcher.next_position, batcher.body_bytes, batcher.limit) == (
            position,
            position,
            0,
            0,
        )


@pytest.mark.parametrize(
    ("uploads", "since_last", "open_bytes", "expected"),
    [
        (0, 0.0, 1, 0.0),
        (1, 0.0, 1, GATHER_MS),
        (1, GATHER_MS - 1, 1, 1.0),
        (1, GATHER_MS + 1, 1, 0.0),
        (3, 0.0, 1, 3 * GATHER_MS),
        (3, 0.0, 100, 0.0),
        (40, 0.0, 1, LONGEST_MS),
        (40, LONGEST_MS - 1, 1, 1.0),
    ],
)
def test_how_long_a_batch_waits(uploads: int, since_last: float, open_bytes: int, expected: float) -> None:
    """With latency first: not at all when idle or full; else a step for each upload under way, since the last
    began, and not for long."""
    assert wait_ms(uploads, since_last, open_bytes, 100, 0) == expected


@pytest.mark.parametrize("uploads", [0, 1, 40])
def test_an_interval_stands_between_uploads(uploads: int) -> None:
    """Whatever is under way: the rest of it since the last upload began, none after it, and none when the
    batch is full."""
    assert [wait_ms(uploads, since, 1, 100, 250, 20.0) for since in (0.0, 249.0, 250.0, 9e9)] == [
        250.0,
        1.0,
        0.0,
        0.0,
    ]
    assert wait_ms(uploads, 0.0, 100, 100, 250) == 0.0


def test_the_head_is_the_first_object_above_the_trim() -> None:
    """Objects that end at the trim are below it; what is below a durable head is forgotten once."""
    objects = LiveObjects(1000)
    for slot, end in enumerate((1300, 1400, 1900)):
        objects.add(Place(2, slot), end)
    heads = [objects.head_for(trim) for trim in (0, 1299, 1300, 1400, 1899, 1900)]
    assert heads == [
        (Place(2, 0), 1000),
        (Place(2, 0), 1000),
        (Place(2, 1), 1300),
        (Place(2, 2), 1400),
        (Place(2, 2), 1400),
        None,
    ]
    assert list(objects.forget(1400)) == [Place(2, 0), Place(2, 1)]
    assert list(objects.forget(1400)) == []
    assert len(objects) == 1


def test_room_counts_what_records_and_objects_add() -> None:
    """Payloads that fill the promised room exactly, all of the least size, fit with their headers into the
    bytes there are."""
    for raw_bytes in (0, 700, 5000, 65536, 1 << 20, 1 << 30):
        room = payload_room(raw_bytes, 65536)
        used = room + -(-room // 64) * RECORD_HEADER_BYTES + (3 + raw_bytes // 65536) * HEADER_BYTES
        assert room >= 0
        assert room == 0 or used <= raw_bytes
    assert payload_room(1 << 30, 1 << 20) > 0.7 * (1 << 30)
