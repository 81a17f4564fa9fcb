"""Opening: a partition that opens, who asked for it, and in whose turn it does."""

from __future__ import annotations

import asyncio

from millrace.broker.partitions.partition import Partition
from millrace.runtime.scheduling.semaphore import Owner, Semaphore

ASKERS_MAX = 64  # of one opening, that are remembered for its turn
# Whoever asks waits so long for an opening, from its beginning on.
OPENING_S = 5.0


class Opening:
    """Of a partition. Its turn is that of the first among those who asked for it (`ASKERS_MAX` of them)."""

    __slots__ = ("_askers", "_permit", "_permits", "due_s", "future")

    def __init__(self, permits: Semaphore) -> None:
        loop = asyncio.get_running_loop()
        self.due_s = loop.time() + OPENING_S
        self.future: asyncio.Future[Partition] = loop.create_future()
        # nobody may be waiting any more when it fails
        self.future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._permits = permits
        self._permit: asyncio.Future[Owner] | None = None  # once it is ready to open
        self._askers: dict[Owner, None] = {}

    def ask(self, asker: Owner) -> None:
        if asker in self._askers or len(self._askers) >= ASKERS_MAX:
            return
        self._askers[asker] = None
        if self._permit is not None and not self._permit.done():
            self._permits.request(self._permit, asker)

    async def turn(self) -> Owner:
        """Whose permit it has, to be released."""
        self._permit = asyncio.get_running_loop().create_future()
        for asker in self._askers:
            if not self._permit.done():
                self._permits.request(self._permit, asker)
        return await self._permit
