"""Two processes that fetch as one replica are told of; one that lost its connections is not."""

from __future__ import annotations

from millrace.kraft.peers.twins import OPEN_MAX, TIMES, WINDOW_S, Twins

ONE, OTHER = (2, bytes(16)), (2, b"other directory.")


class Fetches:
    """Of one replica, whose connections can be closed."""

    def __init__(self, twins: Twins) -> None:
        self._twins = twins
        self._closed: set[int] = set()
        self._number = 0

    def begin(self, now_s: float = 0.0) -> bool:
        self._number += 1
        number = self._number
        return self._twins.on_fetch(ONE, number, lambda: number not in self._closed, now_s)

    def close(self, age: int) -> None:
        """0: the newest."""
        self._closed.add(self._number - age)

    def end(self, age: int) -> None:
        self._twins.on_end(ONE, self._number - age)


def test_two_that_fetch_side_by_side_are_told_of_once_in_a_while() -> None:
    """Each gives up what the other has overtaken, and overtakes the other's."""
    fetches = Fetches(Twins())

    def told(now_s: float, gap_s: float, times: int) -> list[bool]:
        found = []
        for one in range(times):
            fetches.close(1)
            found.append(fetches.begin(now_s + gap_s * one))
        return found

    assert [fetches.begin(), fetches.begin()] == [False, False]
    assert told(0.0, 2.0, TIMES) == [*[False] * (TIMES - 1), True]
    assert told(2.0 * TIMES, 2.0, TIMES) == [False] * TIMES, "it was told less than a minute ago"
    assert told(300.0, WINDOW_S / (TIMES - 2), 3 * TIMES) == [False] * 3 * TIMES, "now and then"
    assert told(9000.0, 2.0, TIMES)[-1]


def test_one_whose_connections_are_lost_without_a_word_is_no_twin() -> None:
    """However often: what it asked over them is given up here. Nor is who closes a connection before it asks
    again, or another directory of the node."""
    twins = Twins()
    fetches = Fetches(twins)
    for _ in range(3 * TIMES):
        for _ in range(3):  # the answers are lost, and the news that their connections were closed
            assert not fetches.begin()
        twins.on_fetch(OTHER, 1, lambda: False, 0.0)
        twins.on_fetch(OTHER, 2, lambda: False, 0.0)
        for number in (1, 2):
            twins.on_end(OTHER, number)
        fetches.close(0)
        assert not fetches.begin()
        for age in (3, 0, 2, 1):  # of the last of these it is known that it was closed
            fetches.end(age)
    assert not twins._open


def test_of_many_that_are_open_at_once_few_are_looked_at() -> None:
    """Whoever says that it is a replica may open them without number, and close none."""
    twins, looks = Twins(), 0

    def is_there() -> bool:
        nonlocal looks
        looks += 1
        return True

    for number in range(100 * OPEN_MAX):
        assert not twins.on_fetch(ONE, number, is_there, 0.0)
    assert looks < 100 * OPEN_MAX * (OPEN_MAX + 1)
    for number in range(100 * OPEN_MAX):
        twins.on_end(ONE, number)
    assert not twins._open
