"""What was dropped lately is remembered by range, once, and within bounds."""

from __future__ import annotations

from millrace.s3stream.ghosts import BLOCKS_MAX, RANGES_MAX, Ghosts


def test_a_miss_is_told_once() -> None:
    """An offset of a dropped block is known, others are not; the block is then forgotten."""
    ghosts = Ghosts(1000)
    ghosts.add(100, {1: (10, 20), 2: (0, 5)})
    ghosts.add(100, {1: (20, 30)})
    assert not ghosts.take(1, 9)
    assert not ghosts.take(1, 30)
    assert not ghosts.take(3, 0)
    assert ghosts.take(1, 25)
    assert not ghosts.take(1, 25)
    assert ghosts.take(2, 0)
    assert not ghosts.take(1, 10)


def test_the_oldest_go_first() -> None:
    """Beyond its bytes, blocks or ranges, what was dropped longest ago is as if it had never been."""
    ghosts = Ghosts(250)
    for number in range(3):
        ghosts.add(100, {1: (number, number + 1)})
    assert [ghosts.take(1, number) for number in range(3)] == [False, True, True]
    for number in range(BLOCKS_MAX + 1):
        ghosts.add(0, {1: (number, number + 1)})
    assert [ghosts.take(1, number) for number in (0, 1, BLOCKS_MAX)] == [False, True, True]
    ghosts.add(0, dict.fromkeys(range(RANGES_MAX), (0, 1)))
    assert not ghosts.take(1, 5)
    assert ghosts.take(1, 0)
    ghosts.add(0, dict.fromkeys(range(RANGES_MAX + 1), (0, 1)))
    assert not ghosts.take(1, 0)
