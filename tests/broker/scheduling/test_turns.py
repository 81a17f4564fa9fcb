"""Turns: first come, first served, at each key; never two at once, never a standstill."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from millrace.broker.scheduling.turns import AT_ONCE, Turn, Turns


def at_once(call: Callable[[], None]) -> None:
    raise AssertionError("a short line never waits")


def test_a_turn_comes_when_it_is_first_everywhere_and_nothing_holds_it() -> None:
    """Work over two keys waits for those before it at either, and for what it asked to wait for."""
    turns, ready = Turns(at_once), []
    first = turns.take("a", 0, lambda: ready.append("first"))
    second = turns.take("b", 1, lambda: ready.append("second"))
    third = turns.take("ab", 0, lambda: ready.append("third"))
    assert ready == ["first"]
    turns.lift(second)
    assert ready == ["first", "second"]
    turns.leave(second)
    assert ready == ["first", "second"]
    turns.leave(first)
    assert ready == ["first", "second", "third"]
    assert turns.is_held("a")
    assert not turns.is_held("c")
    turns.leave(third)
    assert not turns


def test_a_key_named_twice_is_one_place() -> None:
    """Work never stands behind itself."""
    turns, ready = Turns(at_once), []
    turn = turns.take("aab", 0, lambda: ready.append(1))
    assert ready == [1]
    turns.leave(turn)
    assert not turns


def test_any_arrivals_are_served_in_order_at_each_key() -> None:
    """Random work over random keys: everything is served, at each key in the order of arrival, one at a
    time."""
    for seed in range(30):
        chance = random.Random(seed)
        turns = Turns(at_once)
        arrived: list[tuple[str, ...]] = []
        held: list[Turn] = []
        at_work: list[int] = []
        served: list[int] = []
        places: dict[int, Turn] = {}

        def step() -> None:
            number = at_work.pop(chance.randrange(len(at_work)))  # noqa: B023
            served.append(number)  # noqa: B023
            turns.leave(places[number])  # noqa: B023

        for number in range(60):
            keys = tuple(chance.sample("abcde", chance.randrange(1, 4)))
            arrived.append(keys)
            turn = turns.take(keys, 2, partial(at_work.append, number))
            places[number] = turn
            turns.lift(turn)
            held.append(turn)
            while held and chance.random() < 0.5:
                turns.lift(held.pop(chance.randrange(len(held))))
            while at_work and chance.random() < 0.5:
                step()
        while held or at_work:
            if held:
                turns.lift(held.pop())
            if at_work:
                step()
        assert sorted(served) == list(range(60))
        assert not turns
        for key in "abcde":
            assert [n for n in served if key in arrived[n]] == [n for n in range(60) if key in arrived[n]]


def test_a_long_line_moves_up_one_after_the_other() -> None:
    """Work that is done at once is not run within the work before it, however many stand in line; after some
    of them others have the loop."""
    later: list[Callable[[], None]] = []
    turns, served = Turns(later.append), []
    depth = 0

    def serve(number: int) -> None:
        nonlocal depth
        depth += 1
        assert depth == 1
        served.append(number)
        turns.leave(places[number])
        depth -= 1

    first = turns.take("a", 0, lambda: None)
    places = [turns.take("a", 0, partial(serve, number)) for number in range(3 * AT_ONCE)]
    turns.leave(first)
    assert served == list(range(AT_ONCE))
    places.append(turns.take("a", 0, partial(serve, len(places))))
    while later:
        before = len(served)
        later.pop()()
        assert 0 < len(served) - before <= AT_ONCE
    assert served == list(range(3 * AT_ONCE + 1))
    assert not turns


def test_what_one_raises_stops_none_behind_it() -> None:
    """It is told to whoever moved the line; the others' turns come."""
    later: list[Callable[[], None]] = []
    turns, ready = Turns(later.append), []

    def fail() -> None:
        raise RecursionError

    first = turns.take("ab", 0, lambda: None)
    turns.take("a", 0, fail)
    turns.take("b", 0, lambda: ready.append("b"))
    with pytest.raises(RecursionError):
        turns.leave(first)
    later.pop()()
    assert ready == ["b"]
    assert not later
