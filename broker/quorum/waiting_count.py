"""WaitingCount: how many partitions wait for the write-ahead log of a broker that nobody can recover, for
/metrics of the active controller.

Not here: which those are (kraft/commands/moves.py). Kept true: nothing is counted while no broker is gone,
and at most every COUNT_S else, in pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from millrace.kraft.commands.moves import waiting_partition_count
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.node import ControllerNode
from millrace.runtime.scheduling.yield_queue import run_yielding

COUNT_S: Final = 2.0


class WaitingCount:
    """`yield_now` lets others run."""

    def __init__(self, node: ControllerNode, yield_now: Callable[[], Awaitable[None]]) -> None:
        self._node = node
        self._yield_now = yield_now
        self._count = 0
        self._changed = asyncio.Event()

    @property
    def shown(self) -> int:
        """0 where another controller is active: it shows them."""
        return self._count if self._node.driver.news.is_active else 0

    async def run(self) -> None:
        """For ever."""
        unsubscribe = self._node.publisher.subscribe(self._on_image)
        try:
            while True:
                self._changed.clear()
                image = self._node.publisher.image
                self._count = await run_yielding(waiting_partition_count(image), self._yield_now)
                await asyncio.sleep(COUNT_S)
                await self._changed.wait()
        finally:
            unsubscribe()

    def _on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self._count or len(image.failovers):
            self._changed.set()
