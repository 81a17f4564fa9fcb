"""Deletes the files of objects that metadata has doomed, a grace after they were doomed, then tells the controller.

Reads that began before an object was doomed are long over by then. A file that is already gone counts as deleted, so a lost answer or a kill
between the deletion and the report only repeats the deletion. Wakes when metadata dooms something; no polling while there is nothing.
"""

from __future__ import annotations

import asyncio
import logging

from millrace.broker.controller_client import ControllerClient
from millrace.broker.metadata_cache import MetadataCache
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Exhausted, Unavailable
from millrace.runtime.objectstore import ObjectStore, StoreDenied
from millrace.s3stream.objects.keys import object_key

log = logging.getLogger(__name__)
BATCH_COUNT_MAX = 1000
RETRY_S = 10.0


class ObjectCleaner:
    def __init__(
        self, store: ObjectStore, client: ControllerClient, cache: MetadataCache, clock: Clock, grace_ms: int
    ) -> None:
        self._store = store
        self._client = client
        self._cache = cache
        self._clock = clock
        self._grace_ms = grace_ms
        self._changed = asyncio.Event()
        self.deleted_count = 0

    def on_image(self) -> None:
        """A new image: there may be doomed objects in it."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._changed.clear()
            oldest = next(iter(self._cache.image.objects.dooms), None)
            if oldest is None:
                await self._changed.wait()
                continue
            wait_ms = oldest[0] + self._grace_ms - self._clock.wall_ms()
            if wait_ms > 0:
                await asyncio.sleep(min(wait_ms, 60_000) / 1000)
                continue
            if not await self._delete_due():
                await asyncio.sleep(RETRY_S)

    async def _delete_due(self) -> bool:
        """One batch; False when the store would not delete all of it now."""
        due = self._cache.image.objects.doomed_before(self._clock.wall_ms() - self._grace_ms, BATCH_COUNT_MAX)
        keys = {object_key(self._cache.cluster_id, object_id): object_id for object_id in due}
        try:
            failed = await self._store.delete(list(keys))
        except (Unavailable, Exhausted, StoreDenied) as error:
            log.warning("%d objects could not be deleted now: %s", len(keys), error)
            return False
        left = frozenset(failed)
        gone = [object_id for key, object_id in keys.items() if key not in left]
        if gone:
            await self._client.remove_objects(gone)
            self.deleted_count += len(gone)
        if failed:
            log.warning("%d objects could not be deleted now", len(failed))
        return not failed
