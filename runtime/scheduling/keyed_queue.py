"""FIFO queues by key: work that must wait keeps its place at each of its keys, so that what comes later for
one of them cannot overtake it. Pure.

One piece of work may need several keys (a Produce request its partitions). It is ready when it stands first
at all of them and what else it waits for has come; it keeps its places until it is completed. All are taken
at once, in the order of arrival, so no two pieces of work can wait for each other.

Work that is done at once lets the next be ready, and so a long queue would run within the one call that moved
it. It runs one piece after the other instead, none within another, and goes on `later` after some of them.

Invariant: at each key at most one piece of work is ready at a time, the one that came first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable

# Some milliseconds of small requests.
TICKETS_PER_CHUNK = 100


class Ticket:
    """One piece of work in the queue. `holds_count`: how many things it still waits for."""

    __slots__ = ("holds_count", "keys", "on_ready")

    def __init__(self, keys: tuple[Hashable, ...], holds_count: int, on_ready: Callable[[], None]) -> None:
        self.keys = keys
        self.holds_count = holds_count
        self.on_ready = on_ready


class KeyedQueue:
    """Truthy while anything is queued. `later` has its argument called soon, when others had the loop."""

    __slots__ = ("_is_running", "_later", "_queues", "_ready")

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        self._later = later
        self._queues: dict[Hashable, deque[Ticket]] = {}
        self._ready: deque[Ticket] = deque()
        self._is_running = False  # or is going to

    def __bool__(self) -> bool:
        return bool(self._queues)

    def is_queued(self, key: Hashable) -> bool:
        """Something is queued at this key."""
        return key in self._queues

    def enqueue(self, keys: Iterable[Hashable], holds_count: int, on_ready: Callable[[], None]) -> Ticket:
        """Takes a place at each key. `on_ready` is called once, maybe before this returns, when the ticket is
        first at all of them and `holds_count` holds were released; never within that of another."""
        ticket = Ticket(tuple(dict.fromkeys(keys)), holds_count + 1, on_ready)
        for key in ticket.keys:
            queue = self._queues.setdefault(key, deque())
            if queue:
                ticket.holds_count += 1
            queue.append(ticket)
        self.release(ticket)
        return ticket

    def release(self, ticket: Ticket) -> None:
        """One of the things that it waits for has come."""
        self._release(ticket)
        self._go_on()

    def _release(self, ticket: Ticket) -> None:
        ticket.holds_count -= 1
        assert ticket.holds_count >= 0, ticket.holds_count
        if ticket.holds_count == 0:
            self._ready.append(ticket)

    def _go_on(self) -> None:
        if self._ready and not self._is_running:
            self._run_ready()

    def _run_ready(self) -> None:
        """What one of them raises is the caller's; it stops none behind it."""
        self._is_running = True
        try:
            for _ in range(TICKETS_PER_CHUNK):
                self._ready.popleft().on_ready()
                if not self._ready:
                    break
        finally:
            self._is_running = bool(self._ready)
            if self._is_running:
                self._later(self._run_ready)

    def complete(self, ticket: Ticket) -> None:
        """Its work is done: what stands behind it moves up. Only for one that is ready."""
        moved_up = []
        for key in ticket.keys:
            queue = self._queues[key]
            first = queue.popleft()
            assert first is ticket
            if queue:
                moved_up.append(queue[0])
            else:
                del self._queues[key]
        for behind in moved_up:
            self._release(behind)
        self._go_on()
