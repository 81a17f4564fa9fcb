"""Segments: when one ends, what retention drops, where a time may be."""

from __future__ import annotations

import pytest

from millrace.broker.partitions.segments import SEGMENTS_MAX, SPAN_MAX, Segment, Segments
from millrace.runtime.errors import Corrupt

LONG_MS = 10**12


def filled(*batches: tuple[int, int, int], bytes_max: int = 100) -> Segments:
    """Batches (end offset, bytes, timestamp), a new segment when one is full; wall time is the timestamp."""
    segments = Segments.starting_at(0, 0, 0)
    for end, size, timestamp in batches:
        if segments.is_full(end, size, timestamp, timestamp, bytes_max, LONG_MS):
            segments.roll(timestamp, 0)
        segments.add(end, size, timestamp, timestamp)
    return segments


def test_a_segment_ends_by_bytes() -> None:
    """A batch that would exceed segment.bytes begins a new segment; one that exactly fits does not; an empty
    one takes any."""
    segments = filled((10, 60, 1), (20, 40, 2), (30, 1, 3), (40, 500, 4))
    assert [(s.base_offset, s.end_offset, s.size_bytes) for s in segments] == [
        (0, 20, 100),
        (20, 30, 1),
        (30, 40, 500),
    ]
    assert segments.size_bytes == 601


def test_a_segment_ends_by_time_of_its_first_batch() -> None:
    """segment.ms is measured between records, or by the wall clock where records have no timestamps."""
    segments = filled((10, 10, 1000))
    assert not segments.is_full(11, 1, 1500, 9999, 100, 500)
    assert segments.is_full(11, 1, 1501, 0, 100, 500)
    untimed = Segments.starting_at(0, 0, 0)
    untimed.add(10, 10, -1, 1000)
    untimed.add(20, 10, -1, 1400)
    assert not untimed.is_full(21, 1, -1, 1500, 100, 500)
    assert untimed.is_full(21, 1, -1, 1501, 100, 500)


def test_a_segment_spans_less_than_an_int32_of_offsets() -> None:
    """However few its bytes, a segment ends before a relative offset would overflow."""
    segments = filled((10, 1, 1))
    assert not segments.is_full(2**31 - 1, 1, 1, 1, 100, LONG_MS)
    assert segments.is_full(2**31, 1, 1, 1, 100, LONG_MS)


def test_segments_are_bounded() -> None:
    """With too many, only the span still ends one."""
    segments = filled(*((number + 1, 100, 1) for number in range(SEGMENTS_MAX)))
    assert len(segments) == SEGMENTS_MAX
    assert not segments.is_full(SEGMENTS_MAX + 1, 100, 1, 1, 100, LONG_MS)
    assert segments.is_full(SEGMENTS_MAX + SPAN_MAX, 100, 1, 1, 100, LONG_MS)


THREE = ((10, 100, 1000), (20, 100, 2000), (30, 100, 3000))


@pytest.mark.parametrize(
    ("now_ms", "retention_ms", "retention_bytes", "keep_from"),
    [
        (2000, 1000, -1, 0),
        (2001, 1000, -1, 10),
        (3001, 1000, -1, 20),
        (4001, 1000, -1, 30),
        (9999, -1, -1, 0),
        (9999, -1, 300, 0),
        (9999, -1, 299, 0),
        (9999, -1, 200, 10),
        (9999, -1, 150, 10),
        (9999, -1, 99, 20),
        (9999, -1, 0, 30),
        (2001, 1000, 100, 20),
    ],
)
def test_retention_drops_whole_segments_from_the_oldest(
    now_ms: int, retention_ms: int, retention_bytes: int, keep_from: int
) -> None:
    """By time: each whose largest timestamp is too old; by bytes: while what is left is enough. Either is
    reason enough."""
    assert filled(*THREE).plan_retention(now_ms, retention_ms, retention_bytes, 30) == keep_from


def test_retention_stops_at_a_young_segment_and_at_what_is_not_visible() -> None:
    """A timestamp in the future blocks what comes after it, and nothing that is not visible yet is
    dropped."""
    segments = filled((10, 100, 1000), (20, 100, 99_999), (30, 100, 1000))
    assert segments.plan_retention(5000, 1000, -1, 30) == 10
    assert filled(*THREE).plan_retention(9999, 1000, -1, 25) == 20


def test_records_without_timestamps_age_by_the_wall_clock() -> None:
    """A segment with no timestamp is as old as its last append."""
    segments = Segments.starting_at(0, 0, 0)
    segments.add(10, 10, -1, 500)
    assert segments.plan_retention(1500, 1000, -1, 10) == 0
    assert segments.plan_retention(1501, 1000, -1, 10) == 10
    assert segments.retention_due_ms(1000) == 1501


def test_the_open_segment_is_never_dropped() -> None:
    """Segments below the log's start go; the open one stays even when all of it lies below."""
    segments = filled(*THREE)
    assert [s.base_offset for s in segments.drop_below(20)] == [0, 10]
    assert segments.size_bytes == 100
    assert segments.drop_below(30) == []
    segments.roll(0, 0)
    assert [s.base_offset for s in segments.drop_below(30)] == [20]
    assert [(s.base_offset, s.size_bytes) for s in segments] == [(30, 0)]


def test_a_time_is_sought_in_segments_that_reach_it() -> None:
    """Segments whose largest timestamp is too early, or that lie below the log's start, are passed over."""
    segments = filled((10, 100, 1000), (20, 100, 3000), (30, 100, 2000))
    assert [s.base_offset for s in segments.find_time(1500, 0)] == [10, 20]
    assert [s.base_offset for s in segments.find_time(2500, 0)] == [10]
    assert [s.base_offset for s in segments.find_time(1500, 20)] == [20]
    assert segments.find_time(3001, 0) == []
    latest = segments.latest()
    assert latest is not None
    assert latest.base_offset == 10
    assert Segments.starting_at(0, 0, 0).latest() is None


def test_a_segment_comes_back_from_its_bytes() -> None:
    """Encoding keeps every field; other bytes are refused."""
    segment = Segment(2**40, 2**40 + SPAN_MAX, 5, -1, 7, 8, 9, 10, 22)
    data = segment.encode()
    assert Segment.decode(data) == segment
    for wrong in (b"", data[:-1], data + b"\0", b"\x09" + data[1:]):
        with pytest.raises(Corrupt):
            Segment.decode(wrong)
