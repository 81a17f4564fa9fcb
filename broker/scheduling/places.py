"""Places for a few pieces of work at a time that take much memory, first come, first served.

Kept true: there are never more than `count_max` at work, nor, where that is more than one, more than
`bytes_max` among them; nobody overtakes.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Places:
    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = 0
        self._bytes = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def taken_count(self) -> int:
        return self._count

    async def take(self, size_bytes: int = 0) -> None:
        """Returns with a place, which is the caller's until `leave`. Cancelled, it has none."""
        if not self._line and self._fits(size_bytes):
            self._seat(size_bytes)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((size_bytes, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._move_up()  # those behind it may need less
            else:
                self.leave(size_bytes)
            raise

    def leave(self, size_bytes: int = 0) -> None:
        self._count -= 1
        self._bytes -= size_bytes
        assert self._count >= 0, self._count
        self._move_up()

    def _fits(self, size_bytes: int) -> bool:
        return not self._count or (
            self._count < self._count_max and self._bytes + size_bytes <= self._bytes_max
        )

    def _seat(self, size_bytes: int) -> None:
        self._count += 1
        self._bytes += size_bytes

    def _move_up(self) -> None:
        line = self._line
        while line and (line[0][1].done() or self._fits(line[0][0])):
            size_bytes, future = line.popleft()
            if not future.done():
                self._seat(size_bytes)
                future.set_result(None)
