"""One timer for many deadlines: against the plain minimum."""

from __future__ import annotations

import random

from millrace.broker.coordinators.runtime.timers import Timers


def test_later_deadlines_cost_nothing_and_earlier_ones_count() -> None:
    """A deadline that moves away leaves its timer; one that comes nearer has another."""
    timers = Timers()
    assert timers.next_due_ms() is None
    assert timers.set("a", 100)
    assert not timers.set("a", 500)
    assert timers.next_due_ms() == 100
    assert timers.set("a", 50)
    assert timers.set("b", 70)
    assert timers.take_due(60, 9) == ["a"]
    assert timers.next_due_ms() == 70
    assert timers.take_due(200, 9) == ["b"]
    assert (timers.take_due(200, 9), len(timers)) == ([], 0)


def test_at_most_so_many_at_once() -> None:
    """What is due together is taken in parts, the earliest first."""
    timers = Timers()
    for number in range(10):
        timers.set(f"k{number}", 10 - number)
    assert timers.take_due(100, 3) == ["k9", "k8", "k7"]
    assert timers.take_due(100, 100) == ["k6", "k5", "k4", "k3", "k2", "k1", "k0"]


def test_timers_that_move_and_go_cost_no_more_than_others() -> None:
    """A timer moves both ways and goes; what very many leave in the heap is taken out at once, and nothing
    stays of keys that have all gone."""
    timers = Timers()
    for number in range(10_000):
        timers.set(f"k{number}", number)
    timers.move("k0", 20_000)
    timers.move("k9999", 0)
    assert timers.first() == (0, "k9999")
    for number in range(1, 9000):
        timers.forget(f"k{number}")
    timers.move("k9999", 30_000)
    assert timers.first() == (9000, "k9000")
    assert len(timers._heap) == len(timers) == 1001
    for number in range(10_000):
        timers.forget(f"k{number}")
    assert timers.first() is None
    assert (timers._heap, len(timers)) == ([], 0)


def test_no_timer_is_later_than_its_deadline() -> None:
    """Random deadlines: whoever is asked for at its timer, and tells the new one, is never asked late; the
    heap stays small."""
    chance = random.Random(3)
    timers, deadlines, now = Timers(), {}, 0
    for _ in range(5000):
        key = f"k{chance.randrange(20)}"
        deadlines[key] = now + chance.randrange(1, 1000)
        timers.set(key, deadlines[key])
        next_ms = timers.next_due_ms()
        assert next_ms is not None
        assert next_ms <= min(deadlines.values())
        if chance.random() < 0.3:
            now = next_ms
            for due in timers.take_due(now, 1000):
                if deadlines[due] <= now:
                    del deadlines[due]
                else:
                    timers.set(due, deadlines[due])
        assert len(timers._heap) <= 2 * len(timers) + 65
