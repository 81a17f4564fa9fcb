"""Watches and watchers: what counts, who is woken, how often."""

from __future__ import annotations

from collections.abc import Callable

from millrace.broker.waiters import WakeLine, Watch, Watcher, Watches, tell_bytes, tell_change, tell_end


class Loop:
    """Calls kept until `turn`, as an event loop keeps those of call_soon."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def watcher_of(loop: Loop, *places: Watches, countable_bytes: int = 1000) -> tuple[Watcher, list[Watch]]:
    watcher = Watcher(WakeLine(loop.call_soon))
    watches = []
    for place in places:
        watch = Watch()
        watcher.add(watch)
        watch.stand_at(place)
        watch.countable_bytes = countable_bytes
        watcher.settle(watch)
        watches.append(watch)
    return watcher, watches


def test_only_partitions_that_changed_are_looked_at() -> None:
    """Of three watched partitions the two that got bytes are changed, in the order in which they did."""
    loop, places = Loop(), [Watches() for _ in range(3)]
    watcher, watches = watcher_of(loop, *places)
    tell_bytes(places[2], 10)
    tell_bytes(places[0], 10)
    tell_bytes(places[2], 10)
    assert list(watcher.changed) == [watches[2], watches[0]]
    watcher.settle(watches[2])
    assert list(watcher.changed) == [watches[0]]


def test_a_parked_fetch_wakes_once_when_enough_bytes_came() -> None:
    """Bytes are summed over partitions; the call comes in the next turn, once, and not again until parked again."""
    loop, places, woken = Loop(), [Watches(), Watches()], []
    watcher, _ = watcher_of(loop, *places)
    watcher.park(100, lambda: woken.append(watcher.missing_bytes))
    tell_bytes(places[0], 60)
    loop.turn()
    assert woken == []
    tell_bytes(places[1], 39)
    assert watcher.is_parked
    tell_bytes(places[1], 1)
    assert woken == []
    tell_bytes(places[1], 500)
    loop.turn()
    assert woken == [0]
    assert not watcher.is_parked


def test_a_partition_counts_no_more_than_may_be_sent_of_it() -> None:
    """Bytes above a partition's own limit do not count towards the minimum, as they could not be in the answer."""
    loop, places, woken = Loop(), [Watches(), Watches()], []
    watcher, _ = watcher_of(loop, *places, countable_bytes=50)
    watcher.park(60, lambda: woken.append(1))
    tell_bytes(places[0], 1000)
    loop.turn()
    assert woken == []
    tell_bytes(places[1], 10)
    loop.turn()
    assert woken == [1]


def test_an_unparked_fetch_is_not_called() -> None:
    """After its deadline a fetch only gathers news for the next one."""
    loop, place, woken = Loop(), Watches(), []
    watcher, watches = watcher_of(loop, place)
    watcher.park(1, lambda: woken.append(1))
    watcher.unpark()
    tell_bytes(place, 10)
    loop.turn()
    assert woken == []
    assert list(watcher.changed) == watches


def test_one_turn_calls_all_that_became_ready_in_order() -> None:
    """Several fetches woken in one group share one call of the loop."""
    loop, place, woken = Loop(), Watches(), []
    line = WakeLine(loop.call_soon)
    for number in range(3):
        watcher, watch = Watcher(line), Watch()
        watcher.add(watch)
        watch.stand_at(place)
        watch.countable_bytes = 10
        watcher.park(1, lambda number=number: woken.append(number))  # type: ignore[misc]
    tell_bytes(place, 1)
    assert len(loop.calls) == 1
    loop.turn()
    assert woken == [0, 1, 2]


def test_a_new_log_start_is_news_but_wakes_nobody() -> None:
    """The next answer holds it; no fetch is answered early for it."""
    loop, place, woken = Loop(), Watches(), []
    watcher, watches = watcher_of(loop, place)
    watcher.park(1, lambda: woken.append(1))
    tell_change(place)
    loop.turn()
    assert woken == []
    assert list(watcher.changed) == watches


def test_a_partition_that_ends_wakes_its_fetches_and_lets_go() -> None:
    """Whoever waited is answered at once and stands nowhere, so that it can stand at the partition's successor."""
    loop, place, woken = Loop(), Watches(), []
    watcher, (watch,) = watcher_of(loop, place)
    watcher.park(10**9, lambda: woken.append(1))
    tell_end(place)
    loop.turn()
    assert woken == [1]
    assert not place
    successor = Watches()
    watch.stand_at(successor)
    assert list(successor) == [watch]


def test_a_removed_watch_is_forgotten_everywhere() -> None:
    """Neither partition nor watcher keeps it, and late news of it is nothing."""
    loop, place = Loop(), Watches()
    watcher, (watch,) = watcher_of(loop, place)
    watcher.mark(watch)
    watcher.remove(watch)
    tell_bytes(place, 10)
    assert not place
    assert not watcher.changed
