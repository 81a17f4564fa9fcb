"""A semaphore for work that takes memory or time, in number and bytes, shared between owners: each has at
most a part of the permits, and whoever waits is given one after the others, however much one of them asks
for.

Kept true: never more than `count_max` permits are held, nor more than `each_max` of them by one owner, nor,
where that is more than one, more than `bytes_max` among them; a permit that can be given is given at once, to
an owner who has the fewest; nobody overtakes another of the same owner, or one whose bytes do not fit yet.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

Waiter = tuple[int, asyncio.Future[None]]  # the bytes that it asks for


class Semaphore:
    """An owner is a number, such as a connection's. Nothing is kept of owners who have and want nothing."""

    def __init__(self, count_max: int, *, bytes_max: int | None = None, each_max: int | None = None) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._each_max = count_max if each_max is None else each_max
        self._count = 0
        self._bytes = 0
        self._held: Counter[int] = Counter()
        self._queues: dict[int, deque[Waiter]] = {}  # the owner who is next first

    @property
    def held_count(self) -> int:
        return self._count

    @property
    def waiting_count(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    async def acquire(self, owner: int = 0, size_bytes: int = 0) -> None:
        """Returns with a permit, which is the owner's until `release`. Cancelled, it has none."""
        if not self._queues and self._may_have(owner) and self._fits(size_bytes):
            self._give(owner, size_bytes)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(owner, deque()).append((size_bytes, future))
        self._move_up()
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._forget(owner, (size_bytes, future))
                self._move_up()  # those behind it may need less
            else:
                self.release(owner, size_bytes)
            raise

    def release(self, owner: int = 0, size_bytes: int = 0) -> None:
        self._count -= 1
        self._bytes -= size_bytes
        self._held[owner] -= 1
        assert self._held[owner] >= 0, owner
        if not self._held[owner]:
            del self._held[owner]
        self._move_up()

    def _may_have(self, owner: int) -> bool:
        return self._count < self._count_max and self._held[owner] < self._each_max

    def _fits(self, size_bytes: int) -> bool:
        return not self._count or self._bytes_max is None or self._bytes + size_bytes <= self._bytes_max

    def _give(self, owner: int, size_bytes: int) -> None:
        self._count += 1
        self._bytes += size_bytes
        self._held[owner] += 1

    def _next_owner(self) -> int:
        """Who has the fewest, of equals the one who is next. Found at once among any number of owners: those
        who have any are no more than there are permits."""
        for owner in self._queues:
            if owner not in self._held:
                return owner
        return min(self._queues, key=lambda one: self._held[one])

    def _move_up(self) -> None:
        while self._queues and self._count < self._count_max:
            owner = self._next_owner()
            queue = self._queues[owner]
            size_bytes, future = queue[0]
            if not future.done():
                if not (self._may_have(owner) and self._fits(size_bytes)):
                    return
                self._give(owner, size_bytes)
                future.set_result(None)
            queue.popleft()
            del self._queues[owner]
            if queue:
                self._queues[owner] = queue  # behind all others

    def _forget(self, owner: int, waiter: Waiter) -> None:
        queue = self._queues.get(owner)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._queues[owner]
