"""Records: against hand-written bytes and other readers and writers, and every way in which they can be
broken."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from millrace.protocol.batch_build import build_batch, build_end_marker
from millrace.protocol.batches import HEADER_BYTES, BatchHeader, seal_batch
from millrace.protocol.errors import WireError
from millrace.protocol.records import (
    ControlType,
    Record,
    control_key,
    decode_control_key,
    decode_end_marker,
    encode_record,
    encode_records,
    indexes_without_key,
    iter_records,
    iter_times,
)

NOW_MS = 1_700_000_000_000
SAMPLE = [
    Record(b"a", b"first", NOW_MS),
    Record(None, b"second", NOW_MS + 500, ((b"h", b"1"), (b"h", None))),
    Record(b"", None, NOW_MS - 70, ((b"", b""),)),
    Record(None, None, NOW_MS),
    Record(b"k" * 200, b"v" * 70_000, NOW_MS + 2**40),
]


def with_payload(payload: bytes, count: int) -> memoryview:
    """A batch whose header counts `count` records and whose records are `payload`, checksum right."""
    template = bytearray(build_batch([Record(None, None, NOW_MS)]))
    template[23:27] = (count - 1).to_bytes(4, "big", signed=True)
    template[57:61] = count.to_bytes(4, "big", signed=True)
    return memoryview(seal_batch(0, -1, bytes(template[21:HEADER_BYTES]), payload))


# attributes, timestamp delta, offset delta, key, value, headers, each as in Kafka's table of the format
HAND_TABLE: list[tuple[str, tuple[Any, ...], str]] = [
    ("null key and value", (0, 0, None, None, ()), "0c 00 00 00 01 01 00"),
    ("empty key and value", (0, 0, b"", b"", ()), "0c 00 00 00 00 00 00"),
    ("small", (1, 2, b"k", b"vv", ()), "12 00 04 02 02 6b 04 7676 00"),
    ("timestamp before the first", (0, -3, b"", b"", ()), "0c 00 05 00 00 00 00"),
    ("deltas of two bytes", (64, 64, b"", b"", ()), "10 00 8001 8001 00 00 00"),
    ("delta of ten bytes", (0, -(2**63), b"", b"", ()), "1e 00 ffffffffffffffffff01 00 00 00 00"),
    ("headers", (0, 0, b"", b"", ((b"h", b"1"), (b"i", None))), "1a 00 00 00 00 00 04 02 68 02 31 02 69 01"),
]


@pytest.mark.parametrize(
    ("record", "written"), [row[1:] for row in HAND_TABLE], ids=[row[0] for row in HAND_TABLE]
)
def test_records_are_written_as_the_format_says(record: tuple[Any, ...], written: str) -> None:
    """One table of records and their bytes, from Kafka's description, holds in both directions."""
    offset_delta, timestamp_delta, key, value, headers = record
    data = bytes.fromhex(written)
    assert encode_record(offset_delta, timestamp_delta, key, value, headers) == data
    (read,) = iter_records(with_payload(data, 1))
    assert (read.offset, read.timestamp - NOW_MS) == (offset_delta, timestamp_delta)
    assert (read.key, read.value, tuple(read.headers)) == (key, value, headers)


def test_what_is_built_is_read_back() -> None:
    """Keys, values, timestamps and headers come back as given, at consecutive offsets from the batch's."""
    read = list(iter_records(memoryview(build_batch(SAMPLE, base_offset=40))))
    assert [record.offset for record in read] == [40, 41, 42, 43, 44]
    for given_, found in zip(SAMPLE, read, strict=True):
        assert (found.key, found.value, found.timestamp) == (given_.key, given_.value, given_.timestamp)
        assert tuple(found.headers) == tuple(given_.headers)


def test_only_the_first_batch_of_a_view_is_read() -> None:
    """A view may go on after the batch; its records end where the header says."""
    data = build_batch(SAMPLE[:2])
    assert len(list(iter_records(memoryview(data + data)))) == 2


RECORD = st.builds(
    Record,
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=200),
    st.integers(min_value=-(2**62), max_value=2**62 - 1),  # no two are further apart than a delta can say
    st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
)


@given(st.lists(RECORD, min_size=1, max_size=20), st.integers(min_value=0, max_value=2**40))
def test_any_records_are_read_back(records: list[Record], base_offset: int) -> None:
    """Whatever the records are, reading gives back what was built, and the header tells the truth about
    them."""
    data = memoryview(build_batch(records, base_offset=base_offset))
    header = BatchHeader(data)
    read = list(iter_records(data))
    for index, record in enumerate(read):
        record.headers = tuple(record.headers)
        assert record.offset == base_offset + index
        record.offset = -1
    assert read == records
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert [*iter_times(data)] == [
        (base_offset + index, record.timestamp) for index, record in enumerate(records)
    ]
    assert indexes_without_key(data) == [index for index, record in enumerate(records) if record.key is None]


def by_kafka_python(records: list[Record]) -> bytes:
    builder = KafkaPythonBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for offset, record in enumerate(records):
        headers = [(key.decode(), value) for key, value in record.headers]
        assert builder.append(offset, record.timestamp, record.key, record.value, headers)
    return bytes(builder.build())


def by_aiokafka(records: list[Record]) -> bytes:
    builder = AiokafkaBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for offset, record in enumerate(records):
        headers = [(key.decode(), value) for key, value in record.headers]
        assert builder.append(offset, record.timestamp, record.key, record.value, headers)
    return bytes(builder.build())


@pytest.mark.parametrize("write", [by_kafka_python, by_aiokafka])
def test_other_writers_write_the_same_bytes(write: Callable[[list[Record]], bytes]) -> None:
    """An uncompressed batch is the same to the byte as kafka-python's and aiokafka's, but for the leader
    epoch."""
    theirs, ours = bytearray(write(SAMPLE)), build_batch(SAMPLE)
    theirs[12:16] = ours[12:16]
    assert bytes(theirs) == ours


@pytest.mark.parametrize("reader", [KafkaPythonBatch, AiokafkaBatch])
def test_other_readers_read_ours(reader: type[Any]) -> None:
    """kafka-python and aiokafka find in our batch what we put there."""
    read = list(reader(build_batch(SAMPLE, base_offset=7)))
    assert [record.offset for record in read] == [7, 8, 9, 10, 11]
    assert [(record.key, record.value, record.timestamp) for record in read] == [
        (record.key, record.value, record.timestamp) for record in SAMPLE
    ]
    assert [[(key.encode(), value) for key, value in record.headers] for record in read] == [
        list(record.headers) for record in SAMPLE
    ]


TWO = encode_records(SAMPLE[:2], NOW_MS)
BROKEN = [
    ("more records than announced", TWO, 1),
    ("fewer records than announced", TWO, 3),
    ("no records where some are announced", b"", 1),
    ("bytes after the last record", TWO + b"\x00", 2),
    ("length negative", bytes.fromhex("01 00 00 00 01 01 00"), 1),
    ("length beyond the end", bytes.fromhex("0e 00 00 00 01 01 00"), 1),
    ("length of six bytes", bytes.fromhex("808080808000"), 1),
    ("length cut off", b"\x80", 1),
    ("record of no bytes", b"\x00", 1),
    ("record of one byte", b"\x02\x00", 1),
    ("record too short for its headers", bytes.fromhex("0a 00 00 00 01 01 00"), 1),
    ("record too long for its fields", bytes.fromhex("0e 00 00 00 01 01 00 00"), 1),
    ("key beyond the record", bytes.fromhex("0c 00 00 00 08 01 00"), 1),
    ("value beyond the record", bytes.fromhex("0c 00 00 00 01 08 00"), 1),
    ("header count negative", bytes.fromhex("0c 00 00 00 01 01 01"), 1),
    ("header count beyond the record", bytes.fromhex("10 00 00 00 01 01 feff0f"), 1),
    ("header without a key", bytes.fromhex("10 00 00 00 01 01 02 01 01"), 1),
    ("header value beyond the record", bytes.fromhex("10 00 00 00 01 01 02 00 04"), 1),
    ("timestamp cut off", bytes.fromhex("04 00 80"), 1),
    ("timestamp of eleven bytes", bytes.fromhex("1e 00 ffffffffffffffffffff7f 00 00 00"), 1),
    ("fields that reach into the next record", bytes.fromhex("02 00 0c 00 00 00 01 01 00"), 2),
]


@pytest.mark.parametrize(("payload", "count"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_broken_records_are_malformed(payload: bytes, count: int) -> None:
    """Each way a record can lie about its bytes is a WireError, and nothing is read outside the record."""
    with pytest.raises(WireError):
        list(iter_records(with_payload(payload, count)))


@pytest.mark.parametrize("walk", [iter_records, iter_times, lambda view: iter(indexes_without_key(view))])
def test_a_record_cut_anywhere_is_malformed(walk: Callable[[memoryview], Any]) -> None:
    """Whichever walk is taken, records cut at any byte are a WireError."""
    for size in range(len(TWO)):
        with pytest.raises(WireError):
            list(walk(with_payload(TWO[:size], 2)))


@given(st.binary(max_size=60), st.integers(min_value=-1, max_value=2**31 - 1))
def test_any_bytes_are_records_or_malformed(payload: bytes, count: int) -> None:
    """Random bytes under any count end in records or a WireError, in time bounded by the bytes."""
    try:
        assert len(list(iter_records(with_payload(payload, count)))) == max(count, 0)
    except WireError:
        pass


@pytest.mark.parametrize("size", [0, 60, HEADER_BYTES, -1])
def test_a_batch_cut_off_is_malformed(size: int) -> None:
    """A view that ends before its batch does is a WireError, whether in the header or the records."""
    with pytest.raises(WireError):
        list(iter_records(memoryview(build_batch(SAMPLE))[:size]))


@pytest.mark.parametrize("change", [1, -1, 1 << 20, -(1 << 20)])
def test_a_batch_of_another_length_is_malformed(change: int) -> None:
    """A length, which no checksum covers, that the view or the records contradict is a WireError."""
    data = bytearray(build_batch(SAMPLE))
    data[8:12] = (int.from_bytes(data[8:12], "big") + change).to_bytes(4, "big", signed=True)
    with pytest.raises(WireError):
        list(iter_records(memoryview(data)))


def test_an_end_marker_is_kafkas() -> None:
    """A commit marker is, byte for byte, what Java's WriteTxnMarkers handling appends."""
    built = build_end_marker(
        producer_id=77, producer_epoch=3, is_commit=True, coordinator_epoch=11, timestamp=1000
    )
    written = (
        "0000000000000000 00000042 ffffffff 02 744947aa 0030 00000000 00000000000003e8 00000000000003e8"
        "000000000000004d 0003 ffffffff 00000001 20 00 00 00 08 00000001 0c 00000000000b 00"
    )
    assert built.hex() == written.replace(" ", "")
    header = BatchHeader(built)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    (record,) = iter_records(memoryview(built))
    assert decode_control_key(record.key) == ControlType.COMMIT
    assert decode_end_marker(record.value) == 11


def test_control_keys_are_read_tolerantly() -> None:
    """Later versions may be longer and later types unknown; a key too short or of a negative version is
    malformed."""
    assert [decode_control_key(control_key(kind)) for kind in ControlType] == list(range(7))
    assert decode_control_key(b"\x00\x05\x00\x63more") == 99
    assert decode_end_marker(b"\x00\x01\x00\x00\x00\x0bmore") == 11
    for key in (None, b"", b"\x00\x00\x00", b"\xff\xff\x00\x00"):
        with pytest.raises(WireError):
            decode_control_key(key)
    for value in (None, b"", b"\x00\x00\x00\x00\x00"):
        with pytest.raises(WireError):
            decode_end_marker(value)


def test_heads_are_found_wherever_the_window_ends() -> None:
    """Walks that copy a window at a time see each record's head whole, behind records of any size, and the
    last one at the end."""
    chance = random.Random(4)
    for _ in range(20):
        sizes = [
            chance.choice([0, 1, 40, 5000, 65_000, 70_000, 200_000]) for _ in range(chance.randrange(1, 40))
        ]
        records = [
            Record(
                None if chance.randrange(3) else b"k" * chance.randrange(200),
                bytes(size),
                chance.randrange(1 << 40),
            )
            for size in sizes
        ]
        data = memoryview(build_batch(records))
        assert list(iter_times(data)) == [(index, record.timestamp) for index, record in enumerate(records)]
        assert indexes_without_key(data) == [
            index for index, record in enumerate(records) if record.key is None
        ]
    many = memoryview(build_batch([Record(b"key", b"value", number) for number in range(50_000)]))
    assert list(iter_times(many)) == [(number, number) for number in range(50_000)]
    assert indexes_without_key(many) == []
