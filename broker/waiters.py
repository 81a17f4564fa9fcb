"""Fetches that wait for bytes: partitions tell what changed, waiters count, nobody looks at what did not change. Pure.

A `Watch` is one partition in the eyes of one `Watcher`, which is one fetch, or one fetch session for as long as it lives. A partition
keeps its watches in a dict (`Watches`) and tells them of new visible bytes once a WAL group. A watcher keeps the watches that changed
since they were last looked at, in the order in which they changed, so that a fetch over ten thousand partitions of which three have
news looks at three; and, while its fetch is parked, how many bytes are still missing.

Ready watchers are gathered and called together, soon, after the acknowledgements of the same group. The deadline of a parked fetch
is a timer of its handler's: this file knows no clock.

Invariants
  * A watch is in its watcher's `changed` from the moment it changed (or was added) until `settle` was told that nothing is left in it.
  * `on_ready` is called at most once a `park`, never from inside the caller of `on_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable


class Watch:
    """One partition watched by one watcher. Compared by identity."""

    __slots__ = ("countable_bytes", "place", "watcher")

    def __init__(self) -> None:
        self.watcher: Watcher | None = None
        self.place: Watches | None = None
        self.countable_bytes = 0  # how many more bytes of this partition may count for the parked fetch

    def stand_at(self, place: Watches) -> None:
        """From now on the partition that owns `place` tells this watch."""
        if self.place is not place:
            self.leave()
            self.place = place
            place[self] = None

    def leave(self) -> None:
        if self.place is not None:
            self.place.pop(self, None)
            self.place = None


Watches = dict[Watch, None]


class Watcher:
    """One fetch, or one session, and which of its partitions have news."""

    __slots__ = ("_line", "_missing_bytes", "_on_ready", "changed")

    def __init__(self, line: WakeLine) -> None:
        self._line = line
        self._missing_bytes = 0
        self._on_ready: Callable[[], None] | None = None
        self.changed: dict[Watch, None] = {}

    @property
    def is_parked(self) -> bool:
        return self._on_ready is not None

    @property
    def missing_bytes(self) -> int:
        return self._missing_bytes

    def add(self, watch: Watch) -> None:
        """Watches one more partition; it counts as changed until it was looked at."""
        watch.watcher = self
        self.changed[watch] = None

    def mark(self, watch: Watch) -> None:
        """What is wanted of a partition changed: it has to be looked at again."""
        self.changed[watch] = None

    def settle(self, watch: Watch) -> None:
        """Everything there was to see in it was seen."""
        self.changed.pop(watch, None)

    def remove(self, watch: Watch) -> None:
        watch.leave()
        watch.watcher = None
        self.changed.pop(watch, None)

    def park(self, missing_bytes: int, on_ready: Callable[[], None]) -> None:
        """Calls `on_ready` soon after `missing_bytes` more became visible, or something happened that cannot wait."""
        self._missing_bytes = missing_bytes
        self._on_ready = on_ready

    def unpark(self) -> None:
        """The deadline came, or nobody wants the answer any more."""
        self._on_ready = None

    def count(self, watch: Watch, size_bytes: int) -> None:
        self.changed[watch] = None
        if self._on_ready is not None:
            counted = min(size_bytes, watch.countable_bytes)
            watch.countable_bytes -= counted
            self._missing_bytes -= counted
            if self._missing_bytes <= 0:
                self.wake()

    def wake(self) -> None:
        """Whatever is missing: answer now."""
        on_ready = self._on_ready
        if on_ready is not None:
            self._on_ready = None
            self._line.add(on_ready)


class WakeLine:
    """Watchers that became ready in this turn of the loop; all are called in the next, in order."""

    __slots__ = ("_call_soon", "_ready")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._ready: list[Callable[[], None]] = []

    def add(self, on_ready: Callable[[], None]) -> None:
        self._ready.append(on_ready)
        if len(self._ready) == 1:
            self._call_soon(self._run)

    def _run(self) -> None:
        ready, self._ready = self._ready, []
        for on_ready in ready:
            on_ready()


def tell_bytes(watches: Watches, size_bytes: int) -> None:
    """`size_bytes` more of a partition became visible."""
    for watch in watches:
        if watch.watcher is not None:
            watch.watcher.count(watch, size_bytes)


def tell_change(watches: Watches) -> None:
    """Something in a partition's answer changed that alone is no reason to answer: its log start offset."""
    for watch in watches:
        if watch.watcher is not None:
            watch.watcher.mark(watch)


def tell_end(watches: Watches) -> None:
    """The partition is led here no longer, or not in this epoch: whoever waits for it is answered."""
    for watch in list(watches):
        if watch.watcher is not None:
            watch.watcher.mark(watch)
            watch.watcher.wake()
        watch.place = None
    watches.clear()
