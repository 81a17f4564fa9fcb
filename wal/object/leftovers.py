"""Deletes objects that no recovery needs, in bulk and in the background. What is not deleted is only litter,
and the next opening sees it again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from millrace.runtime.errors import Exhausted, Unavailable
from millrace.runtime.objectstore import ObjectMissing, ObjectStore, StoreDenied

log = logging.getLogger(__name__)

KEYS_AT_ONCE = 1000


class Leftovers:
    """Keys that were refused wait for the next `add`, so that a store in trouble is not pressed."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._keys: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self.deleted_count = 0

    def add(self, keys: Iterable[str]) -> None:
        self._keys += keys
        if self._keys and self._task is None:
            self._task = asyncio.create_task(self._run(), name="wal-leftovers")

    async def finish(self) -> None:
        """Waits for what is under way. Cancelled, it is under way still."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._keys:
                some = self._keys[:KEYS_AT_ONCE]
                refused = await self._store.delete(some)
                self._keys[: len(some)] = []
                self.deleted_count += len(some) - len(refused)
                if refused:
                    self._keys += refused
                    log.info("%d objects of the WAL were not deleted now", len(refused))
                    return
        except (Unavailable, Exhausted, StoreDenied, ObjectMissing) as error:
            log.info("objects of the WAL were not deleted now: %s", error)
        finally:
            self._task = None
