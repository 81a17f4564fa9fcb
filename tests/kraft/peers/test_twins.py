"""Two processes that fetch as one replica are told of; one that lost a connection is not."""

from __future__ import annotations

from millrace.kraft.peers.twins import TIMES, WINDOW_S, Twins

ONE, OTHER = (2, bytes(16)), (2, b"other directory.")


def test_two_that_fetch_side_by_side_are_told_of_once_in_a_while() -> None:
    twins = Twins()
    assert not twins.on_fetch(ONE, 0.0)
    assert [twins.on_fetch(ONE, float(second)) for second in range(TIMES)] == [False] * (TIMES - 1) + [True]
    assert not twins.on_fetch(ONE, float(TIMES))
    assert twins.on_fetch(ONE, TIMES + WINDOW_S) is False  # those before are too long ago
    assert [twins.on_fetch(ONE, TIMES + WINDOW_S + 1) for _ in range(2)] == [False, True]


def test_a_lost_connection_now_and_then_is_no_twin() -> None:
    """Nor is another directory of the node, nor who asks again once it was answered."""
    twins = Twins()
    for round_ in range(10):
        assert not twins.on_fetch(ONE, round_ * WINDOW_S)
        assert not twins.on_fetch(OTHER, round_ * WINDOW_S)
        assert not twins.on_fetch(ONE, round_ * WINDOW_S + 2)  # the first is not known to be given up yet
        for replica in (ONE, OTHER, ONE):
            twins.on_answered(replica)
    for second in range(10):
        assert not twins.on_fetch(ONE, 1000.0 + second)
        twins.on_answered(ONE)
