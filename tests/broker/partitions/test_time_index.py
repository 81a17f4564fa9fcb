"""Time index: entries bound a scan from below, whatever order timestamps come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.broker.partitions.time_index import (
    CHUNK_HEADER_BYTES,
    ENTRY_BYTES,
    TAIL_ENTRIES_MAX,
    TimeTail,
    find_in_chunk,
    is_chunk,
    last_in_chunk,
)


def test_an_entry_each_interval() -> None:
    """Entries come every so many bytes, not every batch, and hold the largest timestamp so far."""
    tail = TimeTail(1000)
    for number, timestamp in enumerate((10, 30, 20, 25, 40, 50)):
        tail.note(1001 + number, timestamp, 100, 150)
    assert len(tail) == 3
    assert [tail.find(timestamp) for timestamp in (30, 31, 40, 41, 50, 51)] == [
        None,
        1004,
        1004,
        1004,
        1004,
        1006,
    ]


def test_records_without_timestamps_leave_no_entries() -> None:
    """Timestamp -1 is no time: nothing to find, nothing kept."""
    tail = TimeTail(0)
    for number in range(10):
        tail.note(number + 1, -1, 100, 10)
    assert len(tail) == 0
    assert tail.find(0) is None


def test_a_tail_becomes_a_chunk_that_answers_alike() -> None:
    """A chunk finds what its tail found, the tail goes on above it, and foreign bytes are no chunk."""
    tail = TimeTail(500)
    for number in range(100):
        tail.note(501 + number, number * 10, 100, 50)
    chunk = memoryview(tail.encode())
    assert is_chunk(chunk)
    assert len(chunk) == CHUNK_HEADER_BYTES + 100 * ENTRY_BYTES
    for timestamp in (0, 1, 500, 505, 990, 5000):
        assert find_in_chunk(chunk, 500, timestamp) == tail.find(timestamp)
    assert [last_in_chunk(chunk, 500, end) for end in (500, 501, 550, 9999)] == [
        None,
        (501, 0),
        (550, 490),
        (600, 990),
    ]
    for end in (500, 501, 550, 9999):
        assert tail.last_before(end) == last_in_chunk(chunk, 500, end)
    tail.clear()
    assert tail.find(5000) is None
    tail.note(601, 5, 100, 50)
    assert tail.find(991) == 601
    assert not is_chunk(chunk[:-1])
    assert not is_chunk(chunk[:CHUNK_HEADER_BYTES])
    assert not is_chunk(b"MRTX" + bytes(chunk[4:]))


def test_a_tail_is_bounded() -> None:
    """Entries above the bound are dropped, and lookups stay right, only slower."""
    tail = TimeTail(0)
    for number in range(TAIL_ENTRIES_MAX + 10):
        tail.note(number + 1, number, 2, 1)
    assert len(tail) == TAIL_ENTRIES_MAX
    assert tail.find(10**9) == TAIL_ENTRIES_MAX


BATCHES = st.lists(st.tuples(st.integers(1, 9), st.integers(-1, 60), st.integers(1, 300)), max_size=60)


def noted(batches: list[tuple[int, int, int]]) -> tuple[TimeTail, list[tuple[int, int]]]:
    """The tail behind such batches (count, largest timestamp, bytes), and each one's end and timestamp."""
    tail, offset, ends = TimeTail(0), 0, []
    for count, timestamp, size in batches:
        offset += count
        tail.note(offset, timestamp, size, 200)
        ends.append((offset, timestamp))
    return tail, ends


@given(BATCHES, st.integers(0, 61))
def test_no_wanted_record_lies_below_what_is_found(batches: list[tuple[int, int, int]], wanted: int) -> None:
    """For any batches (count, largest timestamp, bytes): every batch with the wanted time or later ends above
    the start of the scan."""
    tail, ends = noted(batches)
    start = tail.find(wanted)
    for end, timestamp in ends:
        if timestamp >= wanted and start is not None:
            assert end > start


@given(BATCHES, st.integers(0, 300))
def test_the_largest_time_below_an_offset_is_what_the_batches_say(
    batches: list[tuple[int, int, int]], end: int
) -> None:
    """For any batches: of all that end at or below the offset that is found, no more and no less."""
    tail, ends = noted(batches)
    found = tail.last_before(end)
    if found is not None:
        known_end, largest = found
        assert known_end <= end
        assert max(timestamp for batch_end, timestamp in ends if batch_end <= known_end) == largest
