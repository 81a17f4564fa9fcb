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
from typing import NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Owner(NamedTuple):
    """Who asks for permits: a number, such as a connection's, and where it comes from."""

    number: int = 0
    address: Hashable = None


NOBODY = Owner()  # a broker's own work
Waiter = tuple[int, asyncio.Future[Owner]]  # the bytes that it asks for


class Semaphore:
    """Nothing is kept of owners who have and want nothing."""

    def __init__(self, count_max: int, *, bytes_max: int | None = None, each_max: int | None = None) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._each_max = count_max if each_max is None else each_max
        self._count = 0
        self._bytes = 0
        self._held: Counter[Owner] = Counter()
        self._held_at: Counter[Hashable] = Counter()
        # By address; of each the owners. Who is next comes first.
        self._queues: dict[Hashable, dict[Owner, deque[Waiter]]] = {}

    @property
    def held_count(self) -> int:
        return self._count

    @property
    def waiting_count(self) -> int:
        return sum(len(queue) for owners in self._queues.values() for queue in owners.values())

    async def acquire(self, owner: Owner = NOBODY, size_bytes: int = 0) -> None:
        """Returns with a permit, which is the owner's until `release`. Cancelled, it has none."""
        permit: asyncio.Future[Owner] = asyncio.get_running_loop().create_future()
        self.request(permit, owner, size_bytes)
        try:
            await permit
        except asyncio.CancelledError:
            if permit.cancelled():
                self._forget(owner, (size_bytes, permit))
                self._move_up()  # those behind it may need less
            else:
                self.release(owner, size_bytes)
            raise

    def request(self, permit: asyncio.Future[Owner], owner: Owner = NOBODY, size_bytes: int = 0) -> None:
        """`permit` is done, perhaps at once, when there is one. Several owners may ask for the same: it is
        given to one of them, who is its result and releases it."""
        if not self._queues and self._may_have(owner) and self._fits(size_bytes):
            self._give(permit, owner, size_bytes)
            return
        self._queues.setdefault(owner.address, {}).setdefault(owner, deque()).append((size_bytes, permit))
        self._move_up()

    def release(self, owner: Owner = NOBODY, size_bytes: int = 0) -> None:
        self._count -= 1
        self._bytes -= size_bytes
        _take_one(self._held, owner)
        _take_one(self._held_at, owner.address)
        self._move_up()

    def _may_have(self, owner: Owner) -> bool:
        return self._count < self._count_max and self._held[owner] < self._each_max

    def _fits(self, size_bytes: int) -> bool:
        return not self._count or self._bytes_max is None or self._bytes + size_bytes <= self._bytes_max

    def _give(self, permit: asyncio.Future[Owner], owner: Owner, size_bytes: int) -> None:
        self._count += 1
        self._bytes += size_bytes
        self._held[owner] += 1
        self._held_at[owner.address] += 1
        permit.set_result(owner)

    def _move_up(self) -> None:
        while self._queues and self._count < self._count_max:
            owner = self._next()
            if owner is None:
                return
            owners = self._queues[owner.address]
            queue = owners[owner]
            size_bytes, permit = queue[0]
            if not permit.done():
                if not self._fits(size_bytes):
                    return
                self._give(permit, owner, size_bytes)
            queue.popleft()
            del owners[owner], self._queues[owner.address]
            if queue:
                owners[owner] = queue  # behind all others
            if owners:
                self._queues[owner.address] = owners

    def _next(self) -> Owner | None:
        """Who may have one and has the fewest; None where all who wait have their part. Found at once among
        any number of addresses: those that have any are no more than there are permits."""
        found, fewest = None, self._count_max
        for address, owners in self._queues.items():
            owner = _fewest(owners, self._held)
            held_count = self._held_at[address]
            if self._held[owner] < self._each_max and held_count < fewest:
                found, fewest = owner, held_count
                if not held_count:
                    break
        return found

    def _forget(self, owner: Owner, waiter: Waiter) -> None:
        owners = self._queues.get(owner.address, {})
        queue = owners.get(owner)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del owners[owner]
            if not owners:
                del self._queues[owner.address]


def _fewest(waiting: Iterable[Owner], held: Mapping[Owner, int]) -> Owner:
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
