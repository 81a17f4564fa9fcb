"""Turns: first come, first served, at each key; never two at once, never a standstill."""

from __future__ import annotations

import random
from functools import partial

from millrace.broker.turns import Turn, Turns


def test_a_turn_comes_when_it_is_first_everywhere_and_nothing_holds_it() -> None:
    """Work over two keys waits for those before it at either, and for what it asked to wait for."""
    turns, ready = Turns(), []
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
    turns, ready = Turns(), []
    turn = turns.take("aab", 0, lambda: ready.append(1))
    assert ready == [1]
    turns.leave(turn)
    assert not turns


def test_any_arrivals_are_served_in_order_at_each_key() -> None:
    """Random work over random keys: everything is served, at each key in the order of arrival, one at a time."""
    for seed in range(30):
        chance = random.Random(seed)
        turns = Turns()
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
