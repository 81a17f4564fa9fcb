"""Record batches: the header against hand-written bytes and other writers, Kafka's refusals in order, and
what is rewritten."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from millrace.protocol.batch_build import build_batch
from millrace.protocol.batches import (
    CRC_START,
    HEADER_BYTES,
    BatchHeader,
    Codec,
    ProduceRules,
    TimestampType,
    check_produced_batch,
    is_intact,
    iter_headers,
    restamp_head,
    with_log_append_time,
)
from millrace.protocol.crc32c import crc32c
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError, WireError
from millrace.protocol.records import Record, iter_records

NOW_MS = 1_700_000_000_000
RULES = ProduceRules()
VERSION = 9
POSITIONS = {  # name: (position, struct format)
    "base_offset": (0, ">q"),
    "batch_length": (8, ">i"),
    "leader_epoch": (12, ">i"),
    "magic": (16, ">b"),
    "crc": (17, ">I"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}


def three_records() -> list[Record]:
    return [
        Record(b"a", b"first", NOW_MS),
        Record(None, b"second", NOW_MS + 5),
        Record(b"c", None, NOW_MS + 2, ((b"h", b"1"), (b"h", None))),
    ]


def edited(batch: bytes, *, sealed: bool = True, **values: int) -> bytes:
    """`batch` with header fields overwritten; unless told otherwise its checksum is put right afterwards."""
    out = bytearray(batch)
    for name, value in values.items():
        position, layout = POSITIONS[name]
        struct.pack_into(layout, out, position, value)
    if sealed and "crc" not in values:
        struct.pack_into(">I", out, 17, crc32c(out[21:]))
    return bytes(out)


def batch() -> bytes:
    return build_batch(three_records())


def refusal(data: bytes, rules: ProduceRules = RULES, version: int = VERSION, now_ms: int = NOW_MS) -> int:
    """The code that `data` is refused with, 0 when it is taken."""
    try:
        check_produced_batch(memoryview(data), rules, now_ms, version)
    except KafkaError as error:
        return error.code if error.message else ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.NONE


def test_the_header_is_read_where_kafka_has_its_fields() -> None:
    """Each field, given a value of its own, is read back from the position Kafka's table gives it."""
    values = {name: 3 + index for index, name in enumerate(POSITIONS)}
    header = BatchHeader(b"xy" + edited(bytes(HEADER_BYTES), **values), 2)
    assert {name: getattr(header, name) for name in POSITIONS} == values
    assert repr(header).startswith("BatchHeader(attributes=8, base_offset=3,")


@pytest.mark.parametrize("size", [0, 16, HEADER_BYTES - 1])
def test_a_header_cut_off_is_malformed(size: int) -> None:
    """Fewer bytes than a header has are a WireError, not an error of struct."""
    with pytest.raises(WireError):
        BatchHeader(batch()[:size])


@pytest.mark.parametrize(
    ("attributes", "codec", "timestamp_type", "transactional", "control", "delete_horizon"),
    [
        (0x00, Codec.NONE, TimestampType.CREATE, False, False, False),
        (0x01, Codec.GZIP, TimestampType.CREATE, False, False, False),
        (0x0A, Codec.SNAPPY, TimestampType.APPEND, False, False, False),
        (0x13, Codec.LZ4, TimestampType.CREATE, True, False, False),
        (0x34, Codec.ZSTD, TimestampType.CREATE, True, True, False),
        (0x40, Codec.NONE, TimestampType.CREATE, False, False, True),
    ],
)
def test_attributes_say_what_kafka_says(
    attributes: int,
    codec: Codec,
    timestamp_type: TimestampType,
    transactional: bool,
    control: bool,
    delete_horizon: bool,
) -> None:
    """The bits of the attributes are those of Kafka's format."""
    header = BatchHeader(edited(batch(), attributes=attributes))
    assert (header.codec, header.timestamp_type) == (codec, timestamp_type)
    assert (header.is_transactional, header.is_control, header.has_delete_horizon) == (
        transactional,
        control,
        delete_horizon,
    )


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(-1, 4, -1), (0, 0, 0), (5, 4, 9), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 3, 5, 2)],
)
def test_sequences_wrap(base: int, delta: int, last: int) -> None:
    """The last sequence follows 2^31 - 1 with 0, and a batch without a sequence has no last one."""
    assert BatchHeader(edited(batch(), base_sequence=base, last_offset_delta=delta)).last_sequence == last


@pytest.mark.parametrize("transactional", [False, True])
def test_kafka_python_reads_what_we_build(transactional: bool) -> None:
    """Every header field and the checksum of a batch built here are what kafka-python finds in it."""
    built = build_batch(
        three_records(),
        base_offset=77,
        leader_epoch=6,
        producer_id=1234,
        producer_epoch=5,
        base_sequence=2**31 - 2,
        is_transactional=transactional,
    )
    theirs = DefaultRecordBatch(built)
    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.last_offset, theirs.leader_epoch, theirs.magic) == (77, 79, 6, 2)
    assert (theirs.first_timestamp, theirs.max_timestamp, theirs.timestamp_type) == (NOW_MS, NOW_MS + 5, 0)
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (1234, 5, 2**31 - 2)
    assert (theirs.last_sequence, theirs.records_count, theirs.is_transactional) == (0, 3, transactional)
    assert theirs.last_sequence == BatchHeader(built).last_sequence


def test_we_take_what_kafka_python_builds() -> None:
    """A batch from kafka-python's producer passes the check, and every field is what it was told."""
    builder = DefaultRecordBatchBuilder(2, 0, False, 9, 1, 4, 1 << 20)
    for offset, record in enumerate(three_records()):
        builder.append(offset, record.timestamp, record.key, record.value, [("h", b"1")])
    header = check_produced_batch(memoryview(bytes(builder.build())), RULES, NOW_MS, VERSION)
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 2, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (
        9,
        1,
        4,
        6,
    )
    assert (header.base_timestamp, header.max_timestamp, header.codec) == (NOW_MS, NOW_MS + 5, 0)


@dataclass(frozen=True)
class Case:
    """One batch and the code it meets. `make` is given a sound batch."""

    name: str
    make: Callable[[bytes], bytes]
    code: ErrorCode
    rules: ProduceRules = RULES
    version: int = VERSION


def cut(size: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:size]


def edit(*, sealed: bool = True, **values: int) -> Callable[[bytes], bytes]:
    return lambda data: edited(data, sealed=sealed, **values)


def shortened(data: bytes) -> bytes:
    """A batch that says it is shorter than its own header, and is."""
    return edited(data, sealed=False, batch_length=30)[:42]


APPEND_TIME = ProduceRules(is_append_time=True)
SMALL = ProduceRules(batch_bytes_max=80)
SMALL_SEGMENT = ProduceRules(segment_bytes=80)
NARROW = ProduceRules(timestamp_before_max_ms=1000, timestamp_after_max_ms=1000)
DAY_MS = 86_400_000

# Where two faults meet, the code is of the one that Kafka looks at first. Compared once with UnifiedLog 4.3.1
# itself.
CASES = [
    Case("sound", lambda data: data, ErrorCode.NONE),
    Case("sound, with a sequence", edit(producer_id=1, producer_epoch=0, base_sequence=0), ErrorCode.NONE),
    Case("a client's leader epoch does not matter", edit(leader_epoch=99), ErrorCode.NONE),
    Case("nothing", cut(0), ErrorCode.INVALID_RECORD),
    Case("less than a length", cut(11), ErrorCode.INVALID_RECORD),
    Case("less than a magic", cut(16), ErrorCode.INVALID_RECORD),
    Case("less than a header", cut(60), ErrorCode.INVALID_RECORD),
    Case("less than its length", cut(-1), ErrorCode.INVALID_RECORD),
    Case("cut off and magic unknown", lambda data: edited(data, magic=3)[:-1], ErrorCode.CORRUPT_MESSAGE),
    Case("length too small for any format", edit(batch_length=13), ErrorCode.CORRUPT_MESSAGE),
    Case("length negative", edit(batch_length=-1), ErrorCode.CORRUPT_MESSAGE),
    Case("length below the header", shortened, ErrorCode.CORRUPT_MESSAGE),
    Case("magic unknown", edit(magic=3), ErrorCode.CORRUPT_MESSAGE),
    Case("magic negative", edit(magic=-1), ErrorCode.CORRUPT_MESSAGE),
    Case("magic 1", edit(magic=1), ErrorCode.INVALID_RECORD),
    Case("magic 0", edit(magic=0), ErrorCode.INVALID_RECORD),
    Case("two batches", lambda data: data + data, ErrorCode.INVALID_RECORD),
    Case(
        "two batches, the second of magic 1",
        lambda data: data + edited(data, magic=1),
        ErrorCode.INVALID_RECORD,
    ),
    Case("zstd before version 7", edit(attributes=4), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, version=6),
    Case(
        "zstd before version 7, twice",
        lambda data: edited(data, attributes=4) * 2,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        version=6,
    ),
    Case("base offset", edit(base_offset=1), ErrorCode.INVALID_RECORD),
    Case("base offset and size", edit(base_offset=1), ErrorCode.INVALID_RECORD, SMALL),
    Case("size", lambda data: data, ErrorCode.MESSAGE_TOO_LARGE, SMALL),
    Case("size and checksum", edit(crc=1), ErrorCode.MESSAGE_TOO_LARGE, SMALL),
    Case("size and segment", lambda data: data, ErrorCode.MESSAGE_TOO_LARGE, ProduceRules(80, 80)),
    Case("checksum", edit(crc=1), ErrorCode.CORRUPT_MESSAGE),
    Case("checksum and count", edit(crc=1, record_count=0), ErrorCode.CORRUPT_MESSAGE),
    Case("no records", edit(record_count=0), ErrorCode.INVALID_RECORD),
    Case("negative count", edit(record_count=-1), ErrorCode.INVALID_RECORD),
    Case("negative last offset", edit(last_offset_delta=-1, record_count=0), ErrorCode.INVALID_RECORD),
    Case("count below the offsets", edit(record_count=2), ErrorCode.INVALID_RECORD),
    Case("count above the offsets", edit(record_count=4), ErrorCode.INVALID_RECORD),
    Case("more records than bytes", edit(record_count=9, last_offset_delta=8), ErrorCode.INVALID_RECORD),
    Case("control", edit(attributes=0x20), ErrorCode.INVALID_RECORD),
    Case("producer without a sequence", edit(producer_id=1, producer_epoch=0), ErrorCode.INVALID_RECORD),
    Case("segment", lambda data: data, ErrorCode.RECORD_LIST_TOO_LARGE, SMALL_SEGMENT),
    Case("marked as append time, topic too", edit(attributes=8), ErrorCode.INVALID_TIMESTAMP, APPEND_TIME),
    Case("marked as append time and control", edit(attributes=0x28), ErrorCode.INVALID_RECORD),
]


def shifted(milliseconds: int, first: int = 0) -> Callable[[bytes], bytes]:
    """Three records whose timestamps lie around now + `milliseconds`."""

    def make(_: bytes) -> bytes:
        return build_batch([Record(b"k", b"v", NOW_MS + milliseconds + step) for step in (first, 0, 0)])

    return make


def without_timestamps(_: bytes) -> bytes:
    return build_batch([Record(b"k", b"v", -1)])


TIMESTAMP_CASES = [
    Case("an hour ahead", shifted(3_600_000), ErrorCode.NONE),
    Case("more than an hour ahead", shifted(3_600_001), ErrorCode.INVALID_TIMESTAMP),
    Case("any time back", shifted(-NOW_MS), ErrorCode.NONE),
    Case("a second ahead", shifted(1000), ErrorCode.NONE, NARROW),
    Case("more than a second ahead", shifted(1001), ErrorCode.INVALID_TIMESTAMP, NARROW),
    Case("a second back", shifted(-1000), ErrorCode.NONE, NARROW),
    Case("more than a second back", shifted(-1001), ErrorCode.INVALID_TIMESTAMP, NARROW),
    Case("the first record more than a second back", shifted(0, -1001), ErrorCode.INVALID_TIMESTAMP, NARROW),
    Case("no timestamp", without_timestamps, ErrorCode.NONE, NARROW),
    Case("a day ahead, append time", shifted(DAY_MS), ErrorCode.NONE, APPEND_TIME),
]


@pytest.mark.parametrize("case", CASES + TIMESTAMP_CASES, ids=lambda case: case.name)
def test_a_produced_batch_is_judged_as_kafka_judges_it(case: Case) -> None:
    """Each fault meets Kafka's own code, and of two faults the one that Kafka sees first."""
    assert refusal(case.make(batch()), case.rules, case.version) == case.code


def test_append_time_is_never_taken_from_a_client() -> None:
    """A client's LogAppendTime bit is refused on every topic; Kafka 4.3 takes it by oversight where
    timestamps are CreateTime."""
    data = edited(batch(), attributes=8)
    assert [refusal(data, rules) for rules in (RULES, APPEND_TIME)] == [ErrorCode.INVALID_TIMESTAMP] * 2


def test_an_unknown_codec_is_refused() -> None:
    """Codec numbers that name no codec are refused by a code clients know, where Kafka fails with -1."""
    assert [refusal(edited(batch(), attributes=codec)) for codec in (5, 6, 7)] == [76, 76, 76]


def test_bytes_after_a_batch_are_refused() -> None:
    """What follows a batch and is none is refused too: Kafka cuts a partial batch off in silence, no client
    sends one."""
    data = batch()
    assert refusal(data + b"x") == ErrorCode.INVALID_RECORD
    assert refusal(data + data[:-1]) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("version", [3, 6, 7, 13])
def test_zstd_from_version_7(version: int) -> None:
    """zstd is refused below Produce version 7 and taken from there on."""
    data = build_batch(three_records(), codec=Codec.ZSTD)
    assert refusal(data, version=version) == (76 if version < 7 else 0)


def test_a_batch_cut_anywhere_is_refused() -> None:
    """No prefix of a batch is taken, and none raises anything but a refusal."""
    data = batch()
    assert {refusal(data[:size]) for size in range(len(data))} == {ErrorCode.INVALID_RECORD}


@given(st.integers(min_value=16, max_value=len(batch()) - 1), st.integers(min_value=1, max_value=255))
def test_a_changed_byte_is_refused(position: int, change: int) -> None:
    """No byte behind the head can change without the batch being refused."""
    data = bytearray(batch())
    data[position] ^= change
    assert refusal(bytes(data)) in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


@given(st.binary(max_size=200))
def test_any_bytes_are_judged(data: bytes) -> None:
    """Whatever a client sends is answered by a code."""
    assert refusal(data) != ErrorCode.NONE


@pytest.mark.parametrize(("base_offset", "leader_epoch"), [(0, 0), (2**63 - 1, 2**31 - 1), (123456789, 7)])
def test_a_restamped_head_keeps_the_checksum(base_offset: int, leader_epoch: int) -> None:
    """A new head before the rest of a batch is the same batch at another offset, and still intact."""
    data = memoryview(batch())
    header = BatchHeader(data)
    head = restamp_head(base_offset, header.batch_length, leader_epoch, header.crc)
    moved = b"".join((head, data[CRC_START:]))
    theirs = DefaultRecordBatch(moved)
    assert len(head) == CRC_START
    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.leader_epoch) == (base_offset, leader_epoch)
    assert is_intact(memoryview(moved), BatchHeader(moved))


@pytest.mark.parametrize("codec", list(Codec))
def test_append_time_replaces_every_timestamp(codec: Codec) -> None:
    """With the broker's time set, every reader sees that time and nothing else has changed."""
    data = build_batch(
        three_records(), base_offset=5, codec=codec, producer_id=3, producer_epoch=1, base_sequence=8
    )
    stamped = with_log_append_time(memoryview(data), NOW_MS + 99)
    theirs = DefaultRecordBatch(stamped)
    assert theirs.validate_crc()
    assert (theirs.timestamp_type, theirs.max_timestamp, theirs.first_timestamp) == (1, NOW_MS + 99, NOW_MS)
    assert [record.timestamp for record in DefaultRecordBatch(stamped)] == [NOW_MS + 99] * 3
    ours = list(iter_records(memoryview(stamped)))
    assert [record.timestamp for record in ours] == [NOW_MS + 99] * 3
    assert [record.offset for record in ours] == [5, 6, 7]
    assert edited(stamped, attributes=codec, max_timestamp=NOW_MS + 5) == data


def test_batches_are_walked_and_a_cut_tail_is_left_out() -> None:
    """Of several batches in one buffer each whole one is found; wherever the last is cut, the others still
    are."""
    parts = [build_batch(three_records()[:count], base_offset=10 * count) for count in (1, 2, 3)]
    joined = b"".join(parts)
    found = [
        (position, header.base_offset, header.record_count)
        for position, header in iter_headers(memoryview(joined))
    ]
    first, second = len(parts[0]), len(parts[0]) + len(parts[1])
    assert found == [(0, 10, 1), (first, 20, 2), (second, 30, 3)]
    for size in range(second, len(joined)):
        assert [position for position, _ in iter_headers(joined[:size])] == [0, first]
    assert [position for position, _ in iter_headers(joined, first)] == [first, second]


@pytest.mark.parametrize("change", [{"magic": 1}, {"batch_length": 48}, {"batch_length": -1}])
def test_a_walk_stops_where_no_batch_can_start(change: dict[str, int]) -> None:
    """A length or magic that no batch has ends the walk with an error: it can neither loop nor skip."""
    with pytest.raises(WireError):
        list(iter_headers(batch() + edited(batch(), **change)))


def test_is_intact_sees_a_flipped_bit_and_a_wrong_length() -> None:
    """A batch read back from a cache or an object is intact only with all its bytes unchanged."""
    data = batch()
    header = BatchHeader(data)
    assert is_intact(memoryview(data), header)
    assert not is_intact(memoryview(data + b"x"), header)
    assert not is_intact(memoryview(data[:-1] + bytes([data[-1] ^ 1])), header)
    longer = edited(data, batch_length=header.batch_length + 1)
    assert not is_intact(memoryview(longer), BatchHeader(longer))
