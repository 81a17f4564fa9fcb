"""Multipart uploads that nobody will end: the parts that a killed broker left in the bucket, invisible and
paid for.

    listing -> nobody's (by the key's object in metadata, and by age)
        -> aborted: by a broker some minutes after its start and then daily,
               by `millrace fsck --delete-orphans`

Two things must hold before one is aborted. Metadata has given the object's id and does not wait for it any
more: not prepared, so whatever is still sent there can never be committed. And it is older than an upload may
take, by a margin for clocks that differ. Only keys of objects of the own cluster are looked at. Not here: the
directory store's unfinished files, which are swept when it is opened.
"""

from __future__ import annotations

import asyncio
import logging

from millrace.broker.background.object_cleaner import NOT_NOW
from millrace.broker.metadata_cache import MetadataCache
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.objects import ObjectState
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Fenced
from millrace.runtime.objectstore import ObjectMissing, ObjectStore, StoreDenied, UnfinishedUpload
from millrace.s3stream.objects.keys import objects_prefix, parse_object_key
from millrace.s3stream.ownership import UNOWNED, Ownership

log = logging.getLogger(__name__)
# A start has other things to ask of the store; and what the last end left is not old enough yet in any case.
FIRST_S = 600.0
EVERY_S = 86_400.0
# The store's clock, the controller's and ours.
CLOCKS_APART_MS = 3_600_000
NOT_LISTED = (*NOT_NOW, ObjectMissing)  # the last: a gateway that has no such listing


def is_nobodys(upload: UnfinishedUpload, cluster_id: str, image: MetadataImage) -> bool:
    """Whether what it would make can never be committed: see above. Not of an id that this metadata has not
    given yet."""
    object_id = parse_object_key(cluster_id, upload.key)
    if object_id is None or object_id >= image.objects.next_id:
        return False
    stored = image.objects.get(object_id)
    return stored is None or stored.state is not ObjectState.PREPARED


class UploadSweep:
    def __init__(
        self,
        store: ObjectStore,
        cache: MetadataCache,
        clock: Clock,
        upload_ms_max: int,
        ownership: Ownership = UNOWNED,
    ) -> None:
        """`upload_ms_max`: how long ids stay prepared, and with them an upload of use."""
        self._store = store
        self._cache = cache
        self._clock = clock
        self._age_ms_min = upload_ms_max + CLOCKS_APART_MS
        self._ownership = ownership
        self._is_denied = False  # and was said
        self.aborted_count = 0

    async def run(self) -> None:
        """Until cancelled, or until the node has a newer owner."""
        await asyncio.sleep(FIRST_S)
        try:
            while True:
                await self.sweep()
                await asyncio.sleep(EVERY_S)
        except Fenced as error:
            log.warning("the sweep of unfinished uploads ends: %s", error)

    async def sweep(self) -> None:
        """Once. What the store does not do now is left for the next time."""
        cluster_id = self._cache.cluster_id
        try:
            listed = [upload async for upload in self._store.list_uploads(objects_prefix(cluster_id))]
        except NOT_LISTED as error:
            self._note(error)
            return
        image, now_ms = self._cache.image, self._clock.wall_ms()
        for upload in listed:
            age_ms = now_ms - upload.began_ms
            if age_ms < self._age_ms_min or not is_nobodys(upload, cluster_id, image):
                continue
            try:
                await self._ownership.verify(asyncio.get_running_loop().time())
                await upload.abort()
            except NOT_LISTED as error:
                log.warning("the unfinished upload of %s could not be aborted now: %s", upload.key, error)
                continue
            self.aborted_count += 1
            log.info(
                "an upload of %s that was left unfinished %.0f hours ago was aborted",
                upload.key,
                age_ms / 3_600_000,
            )

    def _note(self, error: Exception) -> None:
        if not isinstance(error, StoreDenied | ObjectMissing):
            log.info("unfinished uploads could not be listed now: %s", error)
        elif not self._is_denied:
            self._is_denied = True
            log.warning(
                "unfinished uploads cannot be listed (%s): let a rule of the bucket expire incomplete "
                "multipart uploads after a day or more",
                error,
            )
