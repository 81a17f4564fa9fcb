"""The walk that judges records: what it takes and refuses, and that the compiled one and Python's own say the
same of any bytes."""

from __future__ import annotations

import random
import shutil
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.protocol import record_walk
from millrace.protocol.errors import WireError
from millrace.protocol.primitives import varint
from millrace.protocol.record_walk import (
    INDEXES_MAX,
    IS_COMPILED,
    RECORDS_PER_CHUNK,
    Fault,
    Walk,
    YieldingWalk,
    walk,
    walk_in_python,
)
from millrace.protocol.records import Record, decode_record, encode_record, encode_records

BASE_MS = 1_700_000_000_000
INT64_MAX = (1 << 63) - 1
WALKS = [walk_in_python, walk] if IS_COMPILED else [walk_in_python]
BOTH = pytest.mark.parametrize("walker", WALKS, ids=lambda one: one.__name__)

RECORDS = st.builds(
    Record,
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=200),
    st.integers(BASE_MS - 10**6, BASE_MS + 10**12),
    st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
)


def fault_of(walker: Walk, data: bytes, count: int) -> tuple[int, int]:
    """The fault and the index of the record; (0, largest timestamp) of sound ones."""
    walked = walker(data, count, BASE_MS, 0, INT64_MAX, False)
    return (0, walked) if isinstance(walked, int) else walked[:2]


def test_the_compiled_walk_was_built() -> None:
    """Where there is a compiler the walk was built: without it half of this module would test nothing."""
    assert IS_COMPILED or shutil.which("gcc") is None, "run make setup"


@BOTH
@given(st.lists(RECORDS, min_size=1, max_size=20))
def test_records_that_were_encoded_are_sound(walker: Walk, records: list[Record]) -> None:
    """All keys, values, headers and times that records may have are taken, and the largest time is told."""
    data = encode_records(records, BASE_MS)
    assert walker(data, len(records), BASE_MS, 0, INT64_MAX, False) == max(
        record.timestamp for record in records
    )


@BOTH
def test_long_batches_are_sound(walker: Walk) -> None:
    """Deltas of one, two and three bytes, and more records than a step."""
    data = encode_records([Record(b"k", b"v" * 50, BASE_MS + index) for index in range(20_000)], BASE_MS)
    assert fault_of(walker, data, 20_000) == (0, BASE_MS + 19_999)


SOUND = encode_records([Record(b"k", b"v", BASE_MS), Record(None, None, BASE_MS, ((b"h", None),))], BASE_MS)
ONE = encode_record(0, 0, b"k", b"v")
TWO = encode_record(1, 0, b"k", b"v")


def framed(body: bytes) -> bytes:
    return varint(len(body)) + body


CASES = [
    ("nothing", b"", 1, Fault.BAD_NUMBER, 0),
    ("sound", SOUND, 2, Fault.SOUND, BASE_MS),
    ("count too small", SOUND, 1, Fault.BYTES_LEFT, 1),
    ("count too large", SOUND, 3, Fault.BAD_NUMBER, 2),
    ("bytes after the last", SOUND + b"\0", 2, Fault.BYTES_LEFT, 2),
    ("cut off", SOUND[:-1], 2, Fault.CUT_OFF, 1),
    ("negative length", b"\x01" + SOUND, 2, Fault.WRONG_SIZE, 0),
    ("no bytes in a record", b"\0", 1, Fault.WRONG_SIZE, 0),
    ("longer than its content", framed(ONE[1:] + b"\0"), 1, Fault.WRONG_SIZE, 0),
    ("shorter than its content", framed(ONE[1:-1]), 1, Fault.BAD_NUMBER, 0),
    ("delta twice", ONE + ONE, 2, Fault.WRONG_DELTA, 1),
    ("deltas the wrong way round", TWO + ONE, 2, Fault.WRONG_DELTA, 0),
    ("a gap in deltas", ONE + encode_record(2, 0, None, b"v"), 2, Fault.WRONG_DELTA, 1),
    ("negative delta", encode_record(-1, 0, None, b"v"), 1, Fault.WRONG_DELTA, 0),
    ("key beyond the record", framed(b"\0\0\0" + varint(9) + b"k\1\0"), 1, Fault.WRONG_SIZE, 0),
    ("value beyond the record", framed(b"\0\0\0\1" + varint(9) + b"v\0"), 1, Fault.WRONG_SIZE, 0),
    ("value of 2^31 - 1", framed(b"\0\0\0\1" + varint((1 << 31) - 1) + b"v\0"), 1, Fault.WRONG_SIZE, 0),
    ("length of six bytes", b"\xff\xff\xff\xff\xff\x01", 1, Fault.BAD_NUMBER, 0),
    ("length above 32 bits", b"\xff\xff\xff\xff\x1f", 1, Fault.BAD_NUMBER, 0),
    ("time delta of eleven bytes", framed(b"\0" + b"\xff" * 10 + b"\1"), 1, Fault.BAD_NUMBER, 0),
    ("negative count of headers", framed(b"\0\0\0\1\1\1"), 1, Fault.BAD_HEADERS, 0),
    ("more headers than bytes", framed(b"\0\0\0\1\1" + varint(2) + b"\0\0"), 1, Fault.BAD_HEADERS, 0),
    ("header without a key", framed(b"\0\0\0\1\1" + varint(1) + b"\1\1"), 1, Fault.BAD_HEADERS, 0),
    (
        "header key beyond the record",
        framed(b"\0\0\0\1\1" + varint(1) + varint(5) + b"h"),
        1,
        Fault.BAD_HEADERS,
        0,
    ),
    (
        "header value beyond the record",
        framed(b"\0\0\0\1\1" + varint(1) + b"\0" + varint(5)),
        1,
        Fault.BAD_HEADERS,
        0,
    ),
    (
        "lengths below -1 mean null",
        framed(b"\0\0\0" + varint(-7) + varint(-9) + b"\0"),
        1,
        Fault.SOUND,
        BASE_MS,
    ),
    ("attributes mean nothing", framed(b"\xff\0\0\1\1\0"), 1, Fault.SOUND, BASE_MS),
]


@BOTH
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_each_fault_is_told_with_its_record(walker: Walk, case: tuple[str, bytes, int, Fault, int]) -> None:
    """The kind of fault, and the index of the record where it was met."""
    _, data, count, fault, index = case
    assert fault_of(walker, data, count) == (fault, index)


@BOTH
def test_keys_and_times_are_told_by_index(walker: Walk) -> None:
    """Records without a key, and those out of time, by their places; a record is told of one of the two; -1
    is in time."""
    records = [
        Record(b"k", b"v", BASE_MS),
        Record(None, b"v", BASE_MS),
        Record(b"k", b"v", BASE_MS - 11),
        Record(None, b"v", BASE_MS + 11),
        Record(b"k", b"v", -1),
        Record(b"", b"v", BASE_MS + 10),
    ]
    data = encode_records(records, BASE_MS)
    walked = walker(data, 6, BASE_MS, BASE_MS - 10, BASE_MS + 10, True)
    assert walked == (Fault.SOUND, 6, [1, 3], [2])
    assert walker(data, 6, BASE_MS, BASE_MS - 10, BASE_MS + 10, False) == (Fault.SOUND, 6, [], [2, 3])
    assert walker(data, 6, BASE_MS, BASE_MS - 11, BASE_MS + 11, False) == BASE_MS + 11


@BOTH
def test_indexes_told_are_bounded(walker: Walk) -> None:
    """A batch of nothing but records without keys, or out of time, has the first hundred of each told."""
    records = [Record(None if index % 2 else b"k", b"", 5) for index in range(1000)]
    walked = walker(encode_records(records, BASE_MS), 1000, BASE_MS, BASE_MS, BASE_MS, True)
    assert walked == (0, 1000, list(range(1, 2 * INDEXES_MAX, 2)), list(range(0, 2 * INDEXES_MAX, 2)))


@BOTH
def test_times_wrap_as_in_java(walker: Walk) -> None:
    """A delta beyond 64 bits comes out at the other end, and breaks nothing."""
    data = encode_record(0, INT64_MAX, None, b"")
    assert walker(data, 1, INT64_MAX, 0, INT64_MAX, False) == (0, 1, [], [0])  # it is -2


@pytest.mark.skipif(not IS_COMPILED, reason="nothing to compare")
@given(st.binary(max_size=80), st.integers(1, 9), st.integers(-(1 << 63), INT64_MAX), st.booleans())
@example(b"\0" * 8, 8, 0, True)
def test_both_walks_agree_on_any_bytes(data: bytes, count: int, base: int, needs_keys: bool) -> None:
    """Whatever the bytes are, the compiled walk says what Python's says."""
    arguments = (count, base, BASE_MS - 5, BASE_MS + 5, needs_keys)
    assert walk(data, *arguments) == walk_in_python(data, *arguments)


@pytest.mark.skipif(not IS_COMPILED, reason="nothing to compare")
@given(st.lists(RECORDS, min_size=1, max_size=6), st.integers(0, 1 << 30), st.booleans())
def test_both_walks_agree_on_damaged_records(records: list[Record], seed: int, needs_keys: bool) -> None:
    """Sound records with a few bytes changed, cut or doubled."""
    draw = random.Random(seed)
    data = bytearray(encode_records(records, BASE_MS))
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(data) + 1)
        if draw.random() < 0.7 and at < len(data):
            data[at] = draw.choice((0, 1, 2, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        elif draw.random() < 0.5:
            data[at:at] = data[at : at + 3] + b"\x80"
        else:
            del data[at : at + draw.randrange(1, 4)]
    arguments = (len(records) + draw.choice((0, 0, 0, 1, -1)), BASE_MS, BASE_MS - 5, BASE_MS + 5, needs_keys)
    if arguments[0] > 0:
        assert walk(bytes(data), *arguments) == walk_in_python(bytes(data), *arguments)


@given(st.binary(max_size=60))
def test_what_is_sound_can_be_read(data: bytes) -> None:
    """A record that the walk takes is one that the reader of records takes."""
    body = b"\0\0\0" + data
    if fault_of(walk, framed(body), 1)[0] == Fault.SOUND:
        decode_record(body, 0, len(body))
    else:
        with pytest.raises(WireError):
            decode_record(body, 0, len(body))


def test_pythons_walk_comes_in_chunks() -> None:
    """Between two steps of a thousand records others may run; the answer is there at the end."""
    data = encode_records([Record(None, b"", BASE_MS)] * (3 * RECORDS_PER_CHUNK + 1), BASE_MS)
    steps = YieldingWalk(data, 3 * RECORDS_PER_CHUNK + 1, BASE_MS, 0, INT64_MAX, False)
    assert sum(1 for _ in steps) == 3
    assert steps.walked == BASE_MS


@pytest.mark.skipif(not IS_COMPILED, reason="nothing to time")
def test_the_compiled_walk_is_fast() -> None:
    """At least twenty times as fast as Python's: measured at about a hundred."""
    data = encode_records([Record(None, bytes(90), BASE_MS)] * 5000, BASE_MS)

    def seconds(walker: Walk) -> float:
        began = time.perf_counter()
        walker(data, 5000, BASE_MS, 0, INT64_MAX, False)
        return time.perf_counter() - began

    assert min(seconds(walk) for _ in range(20)) * 20 < min(seconds(walk_in_python) for _ in range(3))


def test_views_are_taken_and_let_go() -> None:
    """A view of memory that is used again later: none of it is held once the answer is there."""
    memory = bytearray(SOUND)
    assert record_walk.walk(memoryview(memory), 2, BASE_MS, 0, INT64_MAX, False) == BASE_MS
    memory.append(0)  # refused while somebody holds a view
