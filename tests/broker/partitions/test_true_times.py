"""Notes on batches that lie: what is stepped over, and how many are kept."""

from __future__ import annotations

from millrace.broker.partitions.true_times import TrueTimes

HERE, THERE = (b"a" * 16, 0), (b"a" * 16, 1)


def test_stretches_without_the_time_are_stepped_over() -> None:
    """One after the other, of that partition alone, up to one that may have it."""
    times = TrueTimes()
    for start, end, largest in ((10, 20, 5), (20, 30, 7), (30, 40, 9)):
        times.note_stretch(HERE, start, end, largest)
    assert times.skip(HERE, 10, 8) == 30
    assert times.skip(HERE, 10, 10) == 40
    assert times.skip(HERE, 10, 5) == 10
    assert times.skip(HERE, 11, 10) == 11
    assert times.skip(THERE, 10, 10) == 10


def test_batches_are_known_by_their_base_offset() -> None:
    """Of their own partition."""
    times = TrueTimes()
    times.note_batch(HERE, 10, 5)
    assert times.largest_of(HERE, 10) == 5
    assert times.largest_of(THERE, 10) is None
    assert times.largest_of(HERE, 11) is None


def test_what_was_used_longest_ago_is_forgotten() -> None:
    """At the bound of each sort."""
    times = TrueTimes(2)
    for offset in (1, 2):
        times.note_batch(HERE, offset, 0)
        times.note_stretch(HERE, offset, offset + 100, 0)
    assert times.largest_of(HERE, 1) == 0
    assert times.skip(HERE, 1, 1) == 101
    times.note_batch(HERE, 3, 0)
    times.note_stretch(HERE, 3, 103, 0)
    assert [times.largest_of(HERE, offset) for offset in (1, 2, 3)] == [0, None, 0]
    assert [times.skip(HERE, offset, 1) for offset in (1, 2, 3)] == [101, 2, 103]
    assert len(times) == 4
