"""A semaphore for work that takes memory or time, in number and bytes, shared between owners: each has at
most a part of the permits, and whoever waits is given one after the others, however much one of them asks
for. Owners have addresses, which take turns first: those of one address share what it is given.

Kept true: never more than `count_max` permits are held, nor more than `each_max` of them by one owner, nor,
where that is more than one, more than `bytes_max` among them; a permit that can be given is given at once, to
an owner who has the fewest of an address that has the fewest; nobody overtakes another of the same owner, or
one whose bytes do not fit yet.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Waiter = tuple[int, asyncio.Future[None]]  # the bytes that it asks for
K = TypeVar("K", bound=Hashable)


class Semaphore:
    """An owner is a number, such as a connection's. Nothing is kept of owners who have and want nothing."""

    def __init__(self, count_max: int, *, bytes_max: int | None = None, each_max: int | None = None) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._each_max = count_max if each_max is None else each_max
        self._count = 0
        self._bytes = 0
        self._held: Counter[int] = Counter()
        self._held_at: Counter[Hashable] = Counter()
        # By address; of each the owners. Who is next comes first.
        self._queues: dict[Hashable, dict[int, deque[Waiter]]] = {}

    @property
    def held_count(self) -> int:
        return self._count

    @property
    def waiting_count(self) -> int:
        return sum(len(queue) for owners in self._queues.values() for queue in owners.values())

    async def acquire(self, owner: int = 0, size_bytes: int = 0, address: Hashable = None) -> None:
        """Returns with a permit, which is the owner's until `release`. Cancelled, it has none."""
        if not self._queues and self._may_have(owner) and self._fits(size_bytes):
            self._give(owner, size_bytes, address)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(address, {}).setdefault(owner, deque()).append((size_bytes, future))
        self._move_up()
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._forget(address, owner, (size_bytes, future))
                self._move_up()  # those behind it may need less
            else:
                self.release(owner, size_bytes, address)
            raise

    def release(self, owner: int = 0, size_bytes: int = 0, address: Hashable = None) -> None:
        self._count -= 1
        self._bytes -= size_bytes
        _take_one(self._held, owner)
        _take_one(self._held_at, address)
        self._move_up()

    def _may_have(self, owner: int) -> bool:
        return self._count < self._count_max and self._held[owner] < self._each_max

    def _fits(self, size_bytes: int) -> bool:
        return not self._count or self._bytes_max is None or self._bytes + size_bytes <= self._bytes_max

    def _give(self, owner: int, size_bytes: int, address: Hashable) -> None:
        self._count += 1
        self._bytes += size_bytes
        self._held[owner] += 1
        self._held_at[address] += 1

    def _move_up(self) -> None:
        while self._queues and self._count < self._count_max:
            found = self._next()
            if found is None:
                return
            address, owner = found
            owners = self._queues[address]
            queue = owners[owner]
            size_bytes, future = queue[0]
            if not future.done():
                if not self._fits(size_bytes):
                    return
                self._give(owner, size_bytes, address)
                future.set_result(None)
            queue.popleft()
            del owners[owner], self._queues[address]
            if queue:
                owners[owner] = queue  # behind all others
            if owners:
                self._queues[address] = owners

    def _next(self) -> tuple[Hashable, int] | None:
        """Address and owner of who may have one and has the fewest; None where all who wait have their part.
        Found at once among any number of addresses: those that have any are no more than there are
        permits."""
        found, fewest = None, self._count_max
        for address, owners in self._queues.items():
            owner = _fewest(owners, self._held)
            held_count = self._held_at[address]
            if self._held[owner] < self._each_max and held_count < fewest:
                found, fewest = (address, owner), held_count
                if not held_count:
                    break
        return found

    def _forget(self, address: Hashable, owner: int, waiter: Waiter) -> None:
        owners = self._queues.get(address, {})
        queue = owners.get(owner)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del owners[owner]
            if not owners:
                del self._queues[address]


def _fewest(waiting: Iterable[K], held: Mapping[K, int]) -> K:
    """Who has the fewest, of equals the one who is next. Found at once among any number: those who have any
    are no more than there are permits."""
    for one in waiting:
        if one not in held:
            return one
    return min(waiting, key=lambda one: held[one])


def _take_one(held: Counter[K], one: K) -> None:
    held[one] -= 1
    assert held[one] >= 0, one
    if not held[one]:
        del held[one]
