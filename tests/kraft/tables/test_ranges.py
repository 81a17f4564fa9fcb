"""The columns that say who holds a stream."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.kraft.tables.packing import pack_holders, pack_ranges, unpack_holders, unpack_ranges
from millrace.kraft.tables.ranges import SLOT_BITS, Holder, StreamRanges
from millrace.kraft.tables.stream_set_groups import in_group, ungrouped

Spans = list[tuple[int, int, int]]  # (start, end, holder)


def filled(count: int, step: int = 10) -> StreamRanges:
    """Objects 100 and following hold `step` offsets each, from 0."""
    ranges = StreamRanges.of(0, ungrouped(100))
    for number in range(1, count):
        ranges = ranges.append(number * step, ungrouped(100 + number))
    return ranges


def ids(found: Spans) -> Spans:
    return [(start, end, holder >> SLOT_BITS) for start, end, holder in found]


def test_what_is_found_begins_with_the_range_that_holds_the_offset() -> None:
    """From the middle of a range on; nothing below the first and nothing at the end."""
    ranges = filled(5)
    assert ids(list(ranges.from_offset(15, 50))) == [
        (10, 20, 101),
        (20, 30, 102),
        (30, 40, 103),
        (40, 50, 104),
    ]
    assert ids(list(ranges.from_offset(49, 50))) == [(40, 50, 104)]
    assert list(ranges.from_offset(50, 50)) == []
    rest, _ = ranges.drop_below(20, 50)
    assert rest is not None
    assert list(rest.from_offset(19, 50)) == []


def test_versions_are_apart() -> None:
    """A line of versions that was given up is not seen by one that goes on from before; nor a place added to
    the last range."""
    base = filled(3).append(30, in_group(7, 0))
    added = base.with_last(base.last | in_group(7, 1))
    given_up = added.append(40, ungrouped(8)).append(50, ungrouped(9))
    other = base.append(35, ungrouped(10))
    assert list(base.all(40))[-1] == (30, 40, in_group(7, 0))
    assert list(added.all(40))[-1] == (30, 40, in_group(7, 0) | in_group(7, 1))
    assert list(given_up.all(60))[-3:] == [
        (30, 40, in_group(7, 0) | in_group(7, 1)),
        (40, 50, ungrouped(8)),
        (50, 60, ungrouped(9)),
    ]
    assert list(other.all(40))[-2:] == [(30, 35, in_group(7, 0)), (35, 40, ungrouped(10))]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 120), max_size=12), st.integers(1, 100))
def test_dropping_gives_what_lay_below(offsets: list[int], count: int) -> None:
    """Every range is dropped once, when the start passes its end, and the rest is found as before."""
    ranges: StreamRanges | None = filled(count, step=1)
    alive = [(number, number + 1, ungrouped(100 + number)) for number in range(count)]
    for offset in sorted(offsets):
        if ranges is None:
            return
        before = list(ranges.all(count))
        ranges_after, dropped = ranges.drop_below(offset, count)
        assert dropped == [holder for _, end, holder in alive if end <= offset]
        alive = [kept for kept in alive if kept[1] > offset]
        assert (ranges_after is None) == (not alive)
        assert list(ranges.all(count)) == before
        ranges = ranges_after
        if ranges is not None:
            assert list(ranges.all(count)) == alive
            assert ranges.holders() == [holder for _, _, holder in alive]


SOURCES = frozenset((100, 101, 103, 104, 107))


def rest_of(holder: Holder) -> Holder | None:
    return holder if holder >> SLOT_BITS in SOURCES else None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=4), st.integers(0, 25)
)
def test_replacing_is_done_offset_by_offset(spans: list[tuple[int, int]], trimmed: int) -> None:
    """What a source held in the given range is the new one's, everything else stays; and the counts of who
    went and came balance."""
    first, _ = filled(8, step=8).drop_below(trimmed, 64)
    assert first is not None
    ranges = first
    model = {at: held >> SLOT_BITS for start, end, held in ranges.all(64) for at in range(start, end)}
    count = len(ranges)
    for number, (start, length) in enumerate(spans):
        before = list(ranges.all(64))
        after, gone, come = ranges.replaced([(start, start + length, ungrouped(200 + number))], 64, rest_of)
        assert list(ranges.all(64)) == before
        for at in range(start, start + length):
            if model.get(at) in SOURCES:
                model[at] = 200 + number
        ranges = after
        count += len(come) - len(gone)
        assert len(ranges) == count
        assert {
            at: held >> SLOT_BITS for low, high, held in ranges.all(64) for at in range(low, high)
        } == model
        starts = [one[0] for one in ranges.all(64)]
        assert starts == sorted(set(starts))


def test_a_range_goes_on_when_its_neighbour_lies_in_the_same_group() -> None:
    """Two sets of compaction that follow one another on a group take one range together."""
    ranges = filled(4)
    first, _, _ = ranges.replaced([(0, 20, in_group(300, 0))], 40, rest_of)
    second, gone, come = first.replaced([(30, 40, in_group(300, 1))], 40, rest_of)
    assert ids(list(second.all(40))) == [(0, 20, 300), (20, 30, 102), (30, 40, 300)]
    both, gone, come = filled(2).replaced(
        [(0, 10, in_group(300, 0)), (10, 20, in_group(300, 1))], 20, rest_of
    )
    assert list(both.all(20)) == [(0, 20, in_group(300, 0) | in_group(300, 1))]
    assert (len(gone), len(come)) == (2, 1)


INT = st.integers(0, 1 << 40)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(INT, INT, st.integers(1, 1 << 40)), max_size=20))
def test_ranges_come_back_from_their_packing(spans: list[tuple[int, int, int]]) -> None:
    """Whatever their order of magnitude, sorted by stream."""
    ranges = [(stream_id, start, start + length) for stream_id, start, length in sorted(spans)]
    assert list(unpack_ranges(pack_ranges(ranges))) == ranges


@settings(max_examples=100, deadline=None)
@given(INT, st.lists(st.tuples(st.integers(1, 1 << 40), INT, st.integers(0, 15)), min_size=1, max_size=20))
def test_holders_come_back_from_their_packing(start: int, drawn: list[tuple[int, int, int]]) -> None:
    """Ids may fall as well as rise, when compaction put new objects before old ones."""
    spans, at = [], start
    for length, object_id, places in drawn:
        spans.append((at, at + length, object_id << SLOT_BITS | places))
        at += length
    packed = pack_holders(spans)
    assert list(unpack_holders(packed)) == [(low, holder) for low, _, holder in spans]
    assert list(StreamRanges.of_pieces(unpack_holders(packed)).all(at)) == spans
