"""Whether the bucket knows newer metadata than the local metadata log: asked before a start changes anything, and before anything is deleted.

A log directory that was restored from an older copy, or cloned, would give offsets and object ids a second time. The bucket tells:
its snapshots and pieces name the highest committed offset and its quorum epoch, and an object under an id that this metadata has not given
yet was put by newer metadata. Not here: the write-ahead log's word (wal_binding.py), claims.
"""

from __future__ import annotations

import asyncio
from typing import Final

from millrace.broker.binding import BindingRefused
from millrace.kraft.bucket.reader import BucketMetadata, survey
from millrace.kraft.image import MetadataImage
from millrace.kraft.log_view import LogHistory
from millrace.kraft.restored_from import forget_restored_from, read_restored_from
from millrace.runtime.disk import Disk
from millrace.runtime.objectstore import ObjectStore
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects.keys import object_key

NEXT_IDS_ASKED: Final = 4  # ids may be given and never put: a few are looked for
REMEDY: Final = (
    "put the current metadata log directory back (log.dirs), or build a new one from the bucket with `millrace restore`"
)


def newer_metadata(found: BucketMetadata, history: LogHistory) -> str | None:
    """Why the local log is not the one whose metadata the bucket holds, or an older copy of it; None where it has everything."""
    names = [(snapshot.end, snapshot.epoch) for snapshot in found.snapshots]
    names += [(piece.end, piece.epoch) for piece in found.pieces]
    if found.newest is not None:
        names.append((found.newest.end, found.newest.epoch))
    for end, epoch in sorted(names, reverse=True):
        if end > history.end:
            return f"the bucket holds metadata up to offset {end} of epoch {epoch}, and the local log ends at {history.end}"
        if not history.has(end, epoch):
            return f"the bucket holds other metadata at offset {end}, of epoch {epoch}: two copies of one log have both been written"
    return None


async def newer_objects(store: ObjectStore, cluster_id: str, image: MetadataImage) -> str | None:
    """The same told by an object that this metadata has not given an id for; None where there is none."""
    next_id = image.objects.next_id
    keys = [object_key(cluster_id, ObjectId(next_id + place)) for place in range(NEXT_IDS_ASKED)]
    for key, entry in zip(keys, await asyncio.gather(*map(store.head, keys)), strict=True):
        if entry is not None:
            return f"the bucket holds {key}, whose id the local metadata has not given yet"
    return None


async def check_metadata(
    store: ObjectStore, bucket: str, cluster_id: str, image: MetadataImage, history: LogHistory
) -> BucketMetadata:
    """What the bucket holds of the metadata. Raises BindingRefused, with nothing changed, where that is newer than the local log, and what
    the store raises."""
    found = await survey(store, cluster_id)
    reason = newer_metadata(found, history) or await newer_objects(store, cluster_id, image)
    if reason is not None:
        raise BindingRefused(f"the metadata log is older than {bucket}: {reason}: {REMEDY}")
    return found


async def check_restored_from(store: ObjectStore, bucket: str, cluster_id: str, disk: Disk, log_dir: str) -> None:
    """Of a log directory's first start after a restore, once the node is claimed: raises BindingRefused where the bucket's metadata
    has grown since it was read. Then whoever had the node was still at work, and what it committed, and trimmed from its WAL for that, is not known
    here. It asks for a newer owner between the two (s3stream/uploader.py), so what is not seen here was not trimmed. Cancelled or
    failed, the next start asks again."""
    basis = await read_restored_from(disk, log_dir)
    if basis is None:
        return
    highest = (await survey(store, cluster_id)).highest
    if highest is not None and highest > (basis.end, basis.epoch):
        raise BindingRefused(
            f"{bucket} held metadata up to offset {basis.end} when this log directory was restored from it, and holds it up to {highest[0]} now: "
            "the process that had the node was still at work, or the bucket is a copy that had not arrived whole. Nothing is served, "
            f"for what was committed since is not known here: see that that process has ended, empty {log_dir} and run `millrace restore` again"
        )
    await forget_restored_from(disk, log_dir)
