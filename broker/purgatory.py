"""Delayed fetches: partitions notify of what changed, subscribers count, nobody reads what did not change.
Pure.

A `Subscription` is one partition of one `Subscriber`, which is one fetch, or one fetch session for as long as
it lives. A partition keeps its subscriptions in a dict (`Subscriptions`) and notifies them of new visible
bytes once a WAL group. A subscriber keeps those that changed since they were last read (they are dirty), in
the order in which they did, so that a fetch over ten thousand partitions of which three have news reads
three; and, while its fetch is delayed, how many bytes are still missing.

Subscribers whose fetch is complete are gathered and called soon, after the acknowledgements of the same
group, some in each iteration of the loop. The deadline of a delayed fetch is a timer of its handler's: this
file knows no clock. What a fetch does then: fetch_machine.py.

Invariants
  * A subscription is in its subscriber's `dirty` from the moment it changed (or was added) until `mark_clean`
    was told that nothing is left in it.
  * `on_complete` is called at most once a `delay`, never from inside the caller of `count_bytes`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

COMPLETED_PER_CHUNK = 50  # each reads and answers: 2 to 5 milliseconds


class Subscription:
    """One partition of one subscriber. Compared by identity."""

    __slots__ = ("countable_bytes", "source", "subscriber")

    def __init__(self) -> None:
        self.subscriber: Subscriber | None = None
        self.source: Subscriptions | None = None  # the partition's, that it stands in
        self.countable_bytes = 0  # how many more bytes of this partition may count for the delayed fetch

    def subscribe(self, source: Subscriptions) -> None:
        """From now on the partition that owns `source` notifies it."""
        if self.source is not source:
            self.unsubscribe()
            self.source = source
            source[self] = None

    def unsubscribe(self) -> None:
        if self.source is not None:
            self.source.pop(self, None)
            self.source = None


Subscriptions = dict[Subscription, None]


class Subscriber:
    """One fetch, or one session, and which of its partitions have news."""

    __slots__ = ("_missing_bytes", "_on_complete", "_queue", "dirty")

    def __init__(self, queue: CompletionQueue) -> None:
        self._queue = queue
        self._missing_bytes = 0
        self._on_complete: Callable[[], None] | None = None
        self.dirty: dict[Subscription, None] = {}

    @property
    def is_delayed(self) -> bool:
        return self._on_complete is not None

    @property
    def missing_bytes(self) -> int:
        return self._missing_bytes

    def add(self, subscription: Subscription) -> None:
        """One more partition; it is dirty until it was read."""
        subscription.subscriber = self
        self.dirty[subscription] = None

    def mark_dirty(self, subscription: Subscription) -> None:
        """What is wanted of a partition, or what it has, changed: it has to be read again."""
        self.dirty[subscription] = None

    def mark_clean(self, subscription: Subscription) -> None:
        """Everything there was to see in it was seen."""
        self.dirty.pop(subscription, None)

    def requeue(self, subscription: Subscription) -> None:
        """One that has more to be read goes behind the others; not one that was removed meanwhile."""
        if subscription in self.dirty:
            del self.dirty[subscription]
            self.dirty[subscription] = None

    def remove(self, subscription: Subscription) -> None:
        subscription.unsubscribe()
        subscription.subscriber = None
        self.dirty.pop(subscription, None)

    def delay(self, missing_bytes: int, on_complete: Callable[[], None]) -> None:
        """Calls `on_complete` soon after `missing_bytes` more became visible, or something happened that
        cannot wait."""
        self._missing_bytes = missing_bytes
        self._on_complete = on_complete

    def cancel(self) -> None:
        """The deadline came, or nobody wants the answer any more."""
        self._on_complete = None

    def count_bytes(self, subscription: Subscription, size_bytes: int) -> None:
        self.dirty[subscription] = None
        if self._on_complete is not None:
            counted = min(size_bytes, subscription.countable_bytes)
            subscription.countable_bytes -= counted
            self._missing_bytes -= counted
            if self._missing_bytes <= 0:
                self.complete()

    def complete(self) -> None:
        """Whatever is missing: it is answered now."""
        on_complete = self._on_complete
        if on_complete is not None:
            self._on_complete = None
            self._queue.add(on_complete)


class CompletionQueue:
    """Delayed fetches that are complete; they are called in the next iterations of the loop, in order,
    COMPLETED_PER_CHUNK in each."""

    __slots__ = ("_call_soon", "_completed")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._completed: deque[Callable[[], None]] = deque()

    def add(self, on_complete: Callable[[], None]) -> None:
        self._completed.append(on_complete)
        if len(self._completed) == 1:
            self._call_soon(self._run)

    def _run(self) -> None:
        completed = self._completed
        now = [completed.popleft() for _ in range(min(COMPLETED_PER_CHUNK, len(completed)))]
        if completed:
            self._call_soon(self._run)
        for on_complete in now:
            on_complete()


def notify_bytes(subscriptions: Subscriptions, size_bytes: int) -> None:
    """`size_bytes` more of a partition became visible."""
    for subscription in subscriptions:
        if subscription.subscriber is not None:
            subscription.subscriber.count_bytes(subscription, size_bytes)


def notify_change(subscriptions: Subscriptions) -> None:
    """Something in a partition's answer changed that alone is no reason to answer: its log start offset."""
    for subscription in subscriptions:
        if subscription.subscriber is not None:
            subscription.subscriber.mark_dirty(subscription)


def complete_all(subscriptions: Subscriptions) -> None:
    """The partition is led here no longer, or not in this epoch: whoever waits for it is answered."""
    for subscription in list(subscriptions):
        if subscription.subscriber is not None:
            subscription.subscriber.mark_dirty(subscription)
            subscription.subscriber.complete()
        subscription.source = None
    subscriptions.clear()
