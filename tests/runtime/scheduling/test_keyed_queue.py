"""Keyed queues: first come, first served, at each key; never two at once, never a standstill."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from millrace.runtime.scheduling.keyed_queue import TICKETS_PER_CHUNK, KeyedQueue, Ticket


def at_once(call: Callable[[], None]) -> None:
    raise AssertionError("a short queue never waits")


def test_a_ticket_is_ready_when_it_is_first_everywhere_and_nothing_holds_it() -> None:
    """Work over two keys waits for those before it at either, and for what it asked to wait for."""
    queue, ready = KeyedQueue(at_once), []
    first = queue.enqueue("a", 0, lambda: ready.append("first"))
    second = queue.enqueue("b", 1, lambda: ready.append("second"))
    third = queue.enqueue("ab", 0, lambda: ready.append("third"))
    assert ready == ["first"]
    queue.release(second)
    assert ready == ["first", "second"]
    queue.complete(second)
    assert ready == ["first", "second"]
    queue.complete(first)
    assert ready == ["first", "second", "third"]
    assert queue.is_queued("a")
    assert not queue.is_queued("c")
    queue.complete(third)
    assert not queue


def test_a_key_named_twice_is_one_place() -> None:
    """Work never stands behind itself."""
    queue, ready = KeyedQueue(at_once), []
    ticket = queue.enqueue("aab", 0, lambda: ready.append(1))
    assert ready == [1]
    queue.complete(ticket)
    assert not queue


def test_any_arrivals_are_served_in_order_at_each_key() -> None:
    """Random work over random keys: everything is served, at each key in the order of arrival, one at a
    time."""
    for seed in range(30):
        chance = random.Random(seed)
        queue = KeyedQueue(at_once)
        arrived: list[tuple[str, ...]] = []
        held: list[Ticket] = []
        at_work: list[int] = []
        served: list[int] = []
        tickets: dict[int, Ticket] = {}

        def step() -> None:
            number = at_work.pop(chance.randrange(len(at_work)))  # noqa: B023
            served.append(number)  # noqa: B023
            queue.complete(tickets[number])  # noqa: B023

        for number in range(60):
            keys = tuple(chance.sample("abcde", chance.randrange(1, 4)))
            arrived.append(keys)
            ticket = queue.enqueue(keys, 2, partial(at_work.append, number))
            tickets[number] = ticket
            queue.release(ticket)
            held.append(ticket)
            while held and chance.random() < 0.5:
                queue.release(held.pop(chance.randrange(len(held))))
            while at_work and chance.random() < 0.5:
                step()
        while held or at_work:
            if held:
                queue.release(held.pop())
            if at_work:
                step()
        assert sorted(served) == list(range(60))
        assert not queue
        for key in "abcde":
            assert [n for n in served if key in arrived[n]] == [n for n in range(60) if key in arrived[n]]


def test_a_long_queue_moves_up_one_after_the_other() -> None:
    """Work that is done at once is not run within the work before it, however many are queued; after some
    of them others have the loop."""
    later: list[Callable[[], None]] = []
    queue, served = KeyedQueue(later.append), []
    depth = 0

    def serve(number: int) -> None:
        nonlocal depth
        depth += 1
        assert depth == 1
        served.append(number)
        queue.complete(tickets[number])
        depth -= 1

    first = queue.enqueue("a", 0, lambda: None)
    tickets = [queue.enqueue("a", 0, partial(serve, number)) for number in range(3 * TICKETS_PER_CHUNK)]
    queue.complete(first)
    assert served == list(range(TICKETS_PER_CHUNK))
    tickets.append(queue.enqueue("a", 0, partial(serve, len(tickets))))
    while later:
        before = len(served)
        later.pop()()
        assert 0 < len(served) - before <= TICKETS_PER_CHUNK
    assert served == list(range(3 * TICKETS_PER_CHUNK + 1))
    assert not queue


def test_what_one_raises_stops_none_behind_it() -> None:
    """It is told to whoever moved the queue; the others are served."""
    later: list[Callable[[], None]] = []
    queue, ready = KeyedQueue(later.append), []

    def fail() -> None:
        raise RecursionError

    first = queue.enqueue("ab", 0, lambda: None)
    queue.enqueue("a", 0, fail)
    queue.enqueue("b", 0, lambda: ready.append("b"))
    with pytest.raises(RecursionError):
        queue.complete(first)
    later.pop()()
    assert ready == ["b"]
    assert not later
