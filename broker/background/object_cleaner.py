"""Deletes the files of objects that metadata has marked for deletion, a grace after they were marked for
deletion and once that is in the bucket's metadata, then tells the controller.

Reads that began before an object was marked for deletion are long over by then (pending_deletions.py says
when). A file that is already gone counts as deleted, so a lost answer or a kill between the deletion and the
report only repeats the deletion. A composite that goes with what it links is read first; its links go before
it does, so that it is there to be read again until they have gone. What the store would not delete is asked
for again with growing pauses, key by key (it may be kept by a lock, or for want of a right), and keeps
nothing else. Wakes when metadata marks for deletion something; no polling while there is nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from millrace.broker.background.pending_deletions import PendingDeletions, left_of_grace_ms
from millrace.broker.controller_client import ControllerClient
from millrace.broker.metadata_cache import MetadataCache
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Exhausted, Fenced, Unavailable
from millrace.runtime.objectstore import ObjectMissing, ObjectStore, StoreDenied
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.ownership import UNOWNED, Ownership
from millrace.s3stream.uploader import no_wait

log = logging.getLogger(__name__)
BATCH_COUNT_MAX = 1000
RETRY_S = 10.0
RETRY_S_MAX = 3600.0
# How long new marks for deletion gather before they are looked at, at most; with a short grace less.
GATHER_S_MAX = 1.0
CORRUPT_TRIES_MAX = 5
NOT_NOW = (Unavailable, Exhausted, StoreDenied)


class ObjectCleaner:
    def __init__(
        self,
        store: ObjectStore,
        client: ControllerClient,
        cache: MetadataCache,
        clock: Clock,
        grace_ms: int,
        before_delete: Callable[[], Awaitable[None]] = no_wait,
        ownership: Ownership = UNOWNED,
    ) -> None:
        """`before_delete` returns when what metadata has committed before the call survives the loss of its
        log: else a restore would name objects that are gone."""
        self._ownership = ownership
        self._store = store
        self._client = client
        self._cache = cache
        self._clock = clock
        self._grace_ms = grace_ms
        self._before_delete = before_delete
        self._changed = asyncio.Event()
        self._noted: object = None  # the marks for deletion that were looked at last
        self._pending = PendingDeletions()
        self._corrupt: Counter[ObjectId] = Counter()
        self._tries: Counter[ObjectId] = Counter()  # that failed
        self.deleted_count = 0

    def on_image(self) -> None:
        """A new image: there may be objects pending deletion in it."""
        if self._cache.image.objects.pending_deletions is not self._noted:
            self._changed.set()

    async def run(self) -> None:
        """Until cancelled, or until the node has a newer owner, who deletes then."""
        try:
            await self._run()
        except Fenced as error:
            log.warning("deletions end: %s", error)

    async def _run(self) -> None:
        self._note_first()
        while True:
            self._changed.clear()
            self._note()
            due_ms = self._pending.next_due_ms
            wait_s = None if due_ms is None else (due_ms - _tick_ms()) / 1000
            if wait_s is None or wait_s > 0:
                await self._wait(wait_s)
            else:
                await self._delete_due()

    async def _wait(self, wait_s: float | None) -> None:
        """Until then, or until more is marked for deletion."""
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(min(GATHER_S_MAX, self._grace_ms / 8000))

    def _note_first(self) -> None:
        """What was marked for deletion before this start."""
        wall_ms, tick_ms = self._clock.wall_ms(), _tick_ms()
        for marked_ms, object_id in self._cache.image.objects.pending_deletions:
            left_ms = left_of_grace_ms(marked_ms, wall_ms, self._grace_ms)
            self._pending.note_one(object_id, tick_ms + left_ms)

    def _note(self) -> None:
        pending = self._cache.image.objects.pending_deletions
        if pending is not self._noted:
            self._noted = pending
            self._pending.note((object_id for _, object_id in pending), _tick_ms() + self._grace_ms)

    async def _delete_due(self) -> bool:
        """One batch; False when not all of it could be deleted now."""
        due = self._pending.take_due(_tick_ms(), BATCH_COUNT_MAX)
        try:
            await self._delete(due)
        finally:
            left = [object_id for object_id in due if object_id in self._pending]
            self._put_off(left)
        return not left

    def _put_off(self, object_ids: list[ObjectId]) -> None:
        now_ms = _tick_ms()
        for object_id in object_ids:
            pause_s = min(RETRY_S_MAX, RETRY_S * 2.0 ** min(self._tries[object_id], 30))
            self._tries[object_id] += 1
            self._pending.put_off([object_id], now_ms + int(pause_s * 1000))

    async def _delete(self, due: list[ObjectId]) -> None:
        await self._before_delete()
        objects = self._cache.image.objects
        stored = {object_id: objects.get(object_id) for object_id in due}
        gone = [object_id for object_id, found in stored.items() if found is None]
        plain = [
            object_id for object_id, found in stored.items() if found is not None and not found.with_links
        ]
        gone += await self._delete_files(plain)
        for object_id, found in stored.items():
            if found is not None and found.with_links and await self._delete_linked(object_id):
                gone += await self._delete_files([object_id])
        known = [object_id for object_id in gone if stored[object_id] is not None]
        if known:
            await self._client.remove_objects(known)
            self.deleted_count += len(known)
        self._pending.forget(gone)
        for object_id in gone:
            self._tries.pop(object_id, None)

    async def _delete_files(self, object_ids: list[ObjectId]) -> list[ObjectId]:
        """Those whose files are gone. None before the store was asked, for each batch, whether the node has a
        newer owner."""
        keys = {object_key(self._cache.cluster_id, object_id): object_id for object_id in object_ids}
        gone: list[ObjectId] = []
        names = list(keys)
        for first in range(0, len(names), BATCH_COUNT_MAX):
            batch = names[first : first + BATCH_COUNT_MAX]
            try:
                await self._ownership.verify(asyncio.get_running_loop().time())
                failed = frozenset(await self._store.delete(batch))
            except NOT_NOW as error:
                log.warning("%d objects could not be deleted now: %s", len(batch), error)
                continue
            if failed:
                log.warning("%d objects could not be deleted now", len(failed))
            gone += [keys[key] for key in batch if key not in failed]
        return gone

    async def _delete_linked(self, object_id: ObjectId) -> bool:
        """The files that a composite links. True when none is left, or when it cannot be told which they
        are."""
        from millrace.s3stream.objects.composite import links_of

        key = object_key(self._cache.cluster_id, object_id)
        try:
            links = [link.object_id for link in links_of(memoryview(await self._store.get(key)))]
        except ObjectMissing:
            return True  # an earlier try deleted it, and its links before
        except NOT_NOW as error:
            log.warning("composite %s could not be read now: %s", key, error)
            return False
        except ObjectCorrupt as error:
            self._corrupt[object_id] += 1
            if self._corrupt[object_id] < CORRUPT_TRIES_MAX:
                log.warning("a composite that is to be deleted: %s", error)
                return False
            log.error("what %s links stays in the bucket: %s; `millrace fsck` finds it", key, error)
            return True
        return len(await self._delete_files(links)) == len(links)


def _tick_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
