"""WaitingCount: how many partitions wait for the write-ahead log of a broker that nobody can recover, for
/metrics of the active controller.

Not here: which those are (kraft/commands/moves.py). Kept true: nothing is counted while no broker is gone,
nor where another controller is active; else at most every COUNT_S, in pieces, and for a tenth of the time
where they are many (100,000 take seconds).
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
REST: Final = 9  # times as long as it took, before it is counted again


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
        loop, publisher, news = asyncio.get_running_loop(), self._node.publisher, self._node.driver.news
        unsubscribe = publisher.subscribe(self._on_image)
        news.on_change.append(self._on_news)
        self._on_news()
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                image, began_s = publisher.image, loop.time()
                self._count = await run_yielding(waiting_partition_count(image), self._yield_now)
                if self._count and publisher.image is not image:
                    self._changed.set()  # the last that waited may be among what came meanwhile
                await asyncio.sleep(max(COUNT_S, REST * (loop.time() - began_s)))
        finally:
            unsubscribe()
            news.on_change.remove(self._on_news)

    def _on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self._node.driver.news.is_active and (self._count or len(image.failovers)):
            self._changed.set()

    def _on_news(self) -> None:
        if self._node.driver.news.is_active:
            self._changed.set()
