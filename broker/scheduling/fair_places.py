"""Places for a few pieces of work at a time, shared between owners: each has at most a part of them, and
whoever waits has a turn after the others, however much one of them asks for.

Kept true: never more than `count_max` are taken, nor more than `each_max` by one owner; a place that can be
given is given at once, to an owner who has the fewest.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque


class FairPlaces:
    """An owner is a number, such as a connection's. Nothing is kept of owners who have and want nothing."""

    def __init__(self, count_max: int, each_max: int) -> None:
        self._count_max = count_max
        self._each_max = each_max
        self._count = 0
        self._held: Counter[int] = Counter()
        self._lines: dict[int, deque[asyncio.Future[None]]] = {}  # those who wait, whose turn is next first

    @property
    def taken_count(self) -> int:
        return self._count

    @property
    def waiting_count(self) -> int:
        return sum(len(line) for line in self._lines.values())

    async def take(self, owner: int) -> None:
        """Returns with a place, which is the owner's until `leave`. Cancelled, there is none."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(owner, deque()).append(future)
        self._move_up()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave(owner)
            else:
                self._forget(owner, future)
            raise

    def leave(self, owner: int) -> None:
        self._count -= 1
        self._held[owner] -= 1
        assert self._held[owner] >= 0, owner
        if not self._held[owner]:
            del self._held[owner]
        self._move_up()

    def _move_up(self) -> None:
        while self._count < self._count_max:
            owner = min(
                self._lines, key=lambda one: self._held[one], default=None
            )  # of equals the first in line
            if owner is None or self._held[owner] >= self._each_max:
                return
            line = self._lines.pop(owner)
            future = line.popleft()
            if line:
                self._lines[owner] = line  # behind all others
            if not future.done():
                self._count += 1
                self._held[owner] += 1
                future.set_result(None)

    def _forget(self, owner: int, future: asyncio.Future[None]) -> None:
        line = self._lines.get(owner)
        if line is not None and future in line:
            line.remove(future)
            if not line:
                del self._lines[owner]
