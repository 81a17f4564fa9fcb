"""Subscriptions and subscribers: what counts, who is completed, how often."""

from __future__ import annotations

from collections.abc import Callable

from millrace.broker.purgatory import (
    COMPLETED_PER_CHUNK,
    CompletionQueue,
    Subscriber,
    Subscription,
    Subscriptions,
    complete_all,
    notify_bytes,
    notify_change,
)


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


def subscriber_of(
    loop: Loop, *places: Subscriptions, countable_bytes: int = 1000
) -> tuple[Subscriber, list[Subscription]]:
    subscriber = Subscriber(CompletionQueue(loop.call_soon))
    subscriptions = []
    for place in places:
        subscription = Subscription()
        subscriber.add(subscription)
        subscription.subscribe(place)
        subscription.countable_bytes = countable_bytes
        subscriber.mark_clean(subscription)
        subscriptions.append(subscription)
    return subscriber, subscriptions


def test_only_partitions_that_changed_are_dirty() -> None:
    """Of three watched partitions the two that got bytes are dirty, in the order in which they did."""
    loop, places = Loop(), [Subscriptions() for _ in range(3)]
    subscriber, subscriptions = subscriber_of(loop, *places)
    notify_bytes(places[2], 10)
    notify_bytes(places[0], 10)
    notify_bytes(places[2], 10)
    assert list(subscriber.dirty) == [subscriptions[2], subscriptions[0]]
    subscriber.mark_clean(subscriptions[2])
    assert list(subscriber.dirty) == [subscriptions[0]]


def test_a_delayed_fetch_completes_once_when_enough_bytes_came() -> None:
    """Bytes are summed over partitions; the call comes in the next turn, once, and not again until delayed
    again."""
    loop, places, completed = Loop(), [Subscriptions(), Subscriptions()], []
    subscriber, _ = subscriber_of(loop, *places)
    subscriber.delay(100, lambda: completed.append(subscriber.missing_bytes))
    notify_bytes(places[0], 60)
    loop.turn()
    assert completed == []
    notify_bytes(places[1], 39)
    assert subscriber.is_delayed
    notify_bytes(places[1], 1)
    assert completed == []
    notify_bytes(places[1], 500)
    loop.turn()
    assert completed == [0]
    assert not subscriber.is_delayed


def test_a_partition_counts_no_more_than_may_be_sent_of_it() -> None:
    """Bytes above a partition's own limit do not count towards the minimum, as they could not be in the
    answer."""
    loop, places, completed = Loop(), [Subscriptions(), Subscriptions()], []
    subscriber, _ = subscriber_of(loop, *places, countable_bytes=50)
    subscriber.delay(60, lambda: completed.append(1))
    notify_bytes(places[0], 1000)
    loop.turn()
    assert completed == []
    notify_bytes(places[1], 10)
    loop.turn()
    assert completed == [1]


def test_a_cancelled_fetch_is_not_called() -> None:
    """After its deadline a fetch only gathers news for the next one."""
    loop, place, completed = Loop(), Subscriptions(), []
    subscriber, subscriptions = subscriber_of(loop, place)
    subscriber.delay(1, lambda: completed.append(1))
    subscriber.cancel()
    notify_bytes(place, 10)
    loop.turn()
    assert completed == []
    assert list(subscriber.dirty) == subscriptions


def test_one_turn_calls_all_that_became_ready_in_order() -> None:
    """Several fetches completed in one group share one call of the loop."""
    loop, place, completed = Loop(), Subscriptions(), []
    line = CompletionQueue(loop.call_soon)
    for number in range(3):
        subscriber, subscription = Subscriber(line), Subscription()
        subscriber.add(subscription)
        subscription.subscribe(place)
        subscription.countable_bytes = 10
        subscriber.delay(1, lambda number=number: completed.append(number))  # type: ignore[misc]
    notify_bytes(place, 1)
    assert len(loop.calls) == 1
    loop.turn()
    assert completed == [0, 1, 2]


def test_a_new_log_start_is_news_but_completes_nothing() -> None:
    """The next answer holds it; no fetch is answered early for it."""
    loop, place, completed = Loop(), Subscriptions(), []
    subscriber, subscriptions = subscriber_of(loop, place)
    subscriber.delay(1, lambda: completed.append(1))
    notify_change(place)
    loop.turn()
    assert completed == []
    assert list(subscriber.dirty) == subscriptions


def test_a_partition_that_ends_completes_its_fetches_and_lets_go() -> None:
    """Whoever waited is answered at once and stands nowhere, so that it can stand at the partition's
    successor."""
    loop, place, completed = Loop(), Subscriptions(), []
    subscriber, (subscription,) = subscriber_of(loop, place)
    subscriber.delay(10**9, lambda: completed.append(1))
    complete_all(place)
    loop.turn()
    assert completed == [1]
    assert not place
    successor = Subscriptions()
    subscription.subscribe(successor)
    assert list(successor) == [subscription]


def test_a_removed_subscription_is_forgotten_everywhere() -> None:
    """Neither partition nor subscriber keeps it, and late news of it is nothing."""
    loop, place = Loop(), Subscriptions()
    subscriber, (subscription,) = subscriber_of(loop, place)
    subscriber.mark_dirty(subscription)
    subscriber.remove(subscription)
    notify_bytes(place, 10)
    assert not place
    assert not subscriber.dirty


def test_many_that_wait_for_one_partition_are_called_some_at_a_time() -> None:
    """In the order in which they began to wait, and who becomes ready meanwhile comes behind them."""
    loop, place, completed = Loop(), Subscriptions(), []
    line = CompletionQueue(loop.call_soon)
    count = 3 * COMPLETED_PER_CHUNK + 1
    for number in range(count):
        subscriber, subscription = Subscriber(line), Subscription()
        subscriber.add(subscription)
        subscription.subscribe(place)
        subscription.countable_bytes = 1
        subscriber.delay(1, lambda number=number: completed.append(number))  # type: ignore[misc]
    notify_bytes(place, 1)
    line.add(lambda: completed.append(count))
    counts = []
    while loop.calls:
        loop.turn()
        counts.append(len(completed))
    assert counts == [COMPLETED_PER_CHUNK, 2 * COMPLETED_PER_CHUNK, 3 * COMPLETED_PER_CHUNK, count + 1]
    assert completed == list(range(count + 1))
