"""Producer ids for idempotent producers, taken from blocks that the controller leases.

Each id is given once: what is left of a block is lost with the process. The next block is asked for before
the present one is used up, so that a producer waits for the controller only at the beginning, or when the
controller is away for long.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from millrace.protocol.errors import KafkaError
from millrace.runtime.errors import MillraceError

log = logging.getLogger(__name__)

LOW_PART = 10  # another block is asked for when less than one part in this many is left


class ProducerIdBlocks(Protocol):
    """Implemented on the controller (broker/controller_client.py)."""

    async def allocate_producer_ids(self) -> tuple[int, int]:
        """The first id of a block, and how many. Nobody else is given any of them."""
        ...


class ProducerIds:
    def __init__(self, blocks: ProducerIdBlocks) -> None:
        self._blocks = blocks
        self._next = 0
        self._end = 0
        self._low = 0
        self._following: deque[tuple[int, int]] = deque()
        self._leasing: asyncio.Task[None] | None = None

    def take_at_once(self) -> int | None:
        """An id, or None when there is none to be given without asking the controller."""
        if self._next == self._end and self._following:
            self._next, self._end = self._following.popleft()
        if self._next == self._end:
            return None
        taken = self._next
        self._next += 1
        if self._end - self._next <= self._low and not self._following:
            self._lease()
        return taken

    async def take(self) -> int:
        """An id, asked of the controller if need be. Raises what the controller's client raises."""
        while True:
            taken = self.take_at_once()
            if taken is not None:
                return taken
            leasing = self._lease()
            await asyncio.shield(leasing)

    def _lease(self) -> asyncio.Task[None]:
        if self._leasing is None:
            self._leasing = asyncio.get_running_loop().create_task(self._ask(), name="lease producer ids")
            self._leasing.add_done_callback(self._leased)
        return self._leasing

    async def _ask(self) -> None:
        first, count = await self._blocks.allocate_producer_ids()
        assert count > 0, (first, count)
        self._following.append((first, first + count))
        self._low = count // LOW_PART

    def _leased(self, task: asyncio.Task[None]) -> None:
        self._leasing = None
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, MillraceError | KafkaError):
            log.error("no producer ids were leased", exc_info=error)
