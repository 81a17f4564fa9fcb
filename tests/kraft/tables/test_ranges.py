"""The columns that say which objects hold a stream."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.kraft.tables.ranges import StreamRanges


def filled(count: int, step: int = 10) -> StreamRanges:
    ranges = StreamRanges.of(0, step, 100)
    for number in range(1, count):
        ranges = ranges.add(number * step, (number + 1) * step, 100 + number)
    return ranges


def test_find_is_continuous_from_the_one_that_holds_the_start() -> None:
    """From the middle of a range, bounded by end and by count; nothing where nothing holds the start."""
    ranges = filled(5)
    assert ranges.find(15, 40, 10) == [(10, 20, 101), (20, 30, 102), (30, 40, 103)]
    assert ranges.find(15, 31, 10) == [(10, 20, 101), (20, 30, 102), (30, 40, 103)]
    assert ranges.find(0, 50, 2) == [(0, 10, 100), (10, 20, 101)]
    assert ranges.find(50, 60, 10) == []


def test_a_gap_ends_what_is_found() -> None:
    """What lies behind a gap does not continue what was asked for."""
    ranges = StreamRanges.of(0, 10, 1).add(20, 30, 2)
    assert ranges.find(0, 30, 10) == [(0, 10, 1)]
    assert ranges.find(10, 30, 10) == []
    assert ranges.find(25, 30, 10) == [(20, 30, 2)]


def test_versions_are_apart() -> None:
    """A line of versions that was given up is not seen by one that goes on from before."""
    base = filled(3)
    given_up = base.add(30, 40, 7).add(40, 50, 8)
    other = base.add(30, 35, 9)
    assert list(base) == [(0, 10, 100), (10, 20, 101), (20, 30, 102)]
    assert list(given_up)[-1] == (40, 50, 8)
    assert list(other)[-1] == (30, 35, 9)


def test_a_range_can_be_put_between() -> None:
    """A snapshot's objects come by id, not by offset."""
    ranges = StreamRanges.of(20, 30, 1).add(0, 10, 2).add(10, 20, 3)
    assert list(ranges) == [(0, 10, 2), (10, 20, 3), (20, 30, 1)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 120), max_size=12), st.integers(1, 100))
def test_dropping_gives_what_lay_below(offsets: list[int], count: int) -> None:
    """Every range is dropped once, when the start passes its end, and the rest is found as before."""
    ranges: StreamRanges | None = filled(count, step=1)
    alive = [(number, number + 1, 100 + number) for number in range(count)]
    for offset in sorted(offsets):
        if ranges is None:
            return
        before = list(ranges)
        ranges_after, dropped = ranges.drop_below(offset)
        assert dropped == [object_id for _, end, object_id in alive if end <= offset]
        alive = [kept for kept in alive if kept[1] > offset]
        assert (ranges_after is None) == (not alive)
        assert list(ranges) == before
        ranges = ranges_after
        if ranges is not None:
            assert list(ranges) == alive
