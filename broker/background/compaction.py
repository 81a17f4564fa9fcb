"""Compaction as a task of the broker: its engine is loaded once the broker has started, and told when
metadata changes.

Not here: what is compacted and when (s3stream/compaction). What it does not know yet it need not: its first
look is at everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from millrace.broker.background.inherited_sets import InheritingCatalog
from millrace.broker.controller_client import ControllerClient
from millrace.kraft.image.image import MetadataImage
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Fenced
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.rand import Rand
from millrace.s3stream.compaction.config import CompactionSettings
from millrace.s3stream.compaction.counts import CompactionCounts
from millrace.s3stream.ownership import UNOWNED, Ownership

if TYPE_CHECKING:
    from millrace.s3stream.compaction.run import Compactor


class CompactionTask:
    """`store` is the one that compaction's traffic goes through. `client` speaks for broker `node_id`."""

    def __init__(
        self,
        store: ObjectStore,
        client: ControllerClient,
        node_id: int,
        settings: CompactionSettings,
        cluster_id: str,
        clock: Clock,
        rand: Rand,
        on_failed: Callable[[BaseException], None],
        ownership: Ownership = UNOWNED,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """`on_failed` is told when the node has a newer owner. `is_full`: whether uploads wait because the
        store is full."""
        self._is_full = is_full
        self._filled = asyncio.Event()
        self._on_failed = on_failed
        self._ownership = ownership
        self._store = store
        self._catalog = InheritingCatalog(client, node_id, settings.inherit_after_ms, self._on_change)
        self._settings = settings
        self._cluster_id = cluster_id
        self._clock = clock
        self._rand = rand
        self._seen: tuple[object, object] | None = None
        self._compactor: Compactor | None = None
        self.counts = CompactionCounts()

    @property
    def quarantined_count(self) -> int:
        return 0 if self._compactor is None else self._compactor.quarantined_count

    def on_image(self, image: MetadataImage) -> None:
        """To be told of each, the first one included. Other changes than of objects, streams and brokers
        concern nobody here."""
        self._catalog.on_image(image)
        seen = (image.objects, image.streams)
        if self._seen is not None and seen[0] is self._seen[0] and seen[1] is self._seen[1]:
            return
        self._seen = seen
        self._on_change()

    def _on_change(self) -> None:
        if self._compactor is not None:
            self._compactor.on_change()

    def on_full(self) -> None:
        """An upload was refused for want of room, and waits."""
        self._filled.set()
        if self._compactor is not None:
            self._compactor.on_full()

    async def run(self) -> None:
        """Until cancelled, at any moment: what is under way is thrown away."""
        begin_at_s = asyncio.get_running_loop().time() + self._settings.begin_ms / 1000
        await self._until_begun(begin_at_s)
        from millrace.s3stream.compaction.run import Compactor
        from millrace.s3stream.compaction.work import Work

        work = Work(
            self._store,
            self._catalog,
            self._settings,
            self._cluster_id,
            self._clock,
            self.counts,
            ownership=self._ownership,
        )
        self._compactor = Compactor(work, self._rand, self._is_full, begin_at_s)
        try:
            await self._compactor.run()
        except Fenced as error:
            self._on_failed(error)
        finally:
            self._catalog.close()

    async def _until_begun(self, begin_at_s: float) -> None:
        """A full store does not wait."""
        try:
            async with asyncio.timeout_at(begin_at_s):
                await self._filled.wait()
        except TimeoutError:
            pass
