"""Whether the bucket is older than the metadata log, or emptied: asked before a start changes anything.

A bucket that was restored from a snapshot lacks objects that metadata names, and its claims would be made a
second time under numbers that other incarnations had. Two things tell, and both were in the bucket before
metadata had what follows from them: the claims of the incarnation that opened the node's write-ahead log
last, and the newest objects that are committed. Not seen: a copy of the running life's own time in which one
of the newest objects is there; readers of what is missing are refused, and `fsck` names it. A metadata log
that `restore` has just built comes from its bucket, and is not asked; nor, later on, for the objects of
before. Not here: a bucket that is newer (metadata_check.py), claims of others (claims.py), another cluster's
(binding.py).
"""

from __future__ import annotations

import asyncio
from typing import Final

from millrace.broker.identity.binding import BindingRefused
from millrace.broker.identity.claim_format import claim_key, series_prefix
from millrace.broker.restore.plan import IDS_LIFT_MIN
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.kraft.tables.objects import ObjectState
from millrace.runtime.objectstore import ObjectStore
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects.keys import object_key

NEWEST_ASKED: Final = 4  # one object may be lost alone, which costs its readers and no start
REMEDY: Final = (
    "put the current bucket back (s3.data.buckets), or, where this copy is all that there is, build a log "
    "directory from it with "
    "`millrace restore`"
)


def claimed_number(image: MetadataImage, series: int, node_id: int) -> int:
    """The highest number of the series whose claim is certainly in the bucket: a log is opened, and named in
    metadata, behind it. A broker of a cluster registers before that. 0: none is known to be."""
    opened = {wal.incarnation for wal in image.wals.of_node(node_id)}
    known = (claim.number for claim in image.claims.of(series) if claim.incarnation in opened)
    return max(known, default=0)


def newest_committed(image: MetadataImage) -> list[ObjectId]:
    """The newest committed objects, NEWEST_ASKED at most, of those that were made since metadata was restored
    last: whatever else the bucket lacks, it is all that there is, and the restore has named it. Ids tell, for
    a restore lifts the next one by more than are ever left out otherwise."""
    objects, found, later = image.objects, list[ObjectId](), image.objects.next_id
    for object_id in reversed(objects.by_id):
        if len(found) == NEWEST_ASKED or later - object_id >= IDS_LIFT_MIN:
            break
        if objects.by_id[object_id].state is ObjectState.COMMITTED:
            found.append(object_id)
        later = object_id
    return found


async def check_bucket_age(
    store: ObjectStore,
    bucket: str,
    bound_cluster: str | None,
    cluster_id: str,
    image: MetadataImage,
    node_id: int,
    *,
    is_restored: bool,
) -> None:
    """Changes nothing. `bound_cluster`: whose the bucket is by its marker, None without one; another
    cluster's is not judged here. `is_restored`: no start on the restored log directory was through yet.
    Raises BindingRefused for a bucket that is older than this metadata, and what the store raises."""
    if is_restored or bound_cluster not in (None, cluster_id):
        return
    reason = await _older_claims(store, cluster_id, image, node_id) or await _older_objects(
        store, cluster_id, image
    )
    if reason and bound_cluster is None:
        raise BindingRefused(
            f"{bucket} holds nothing of cluster {cluster_id} ({reason}), nothing was changed: "
            "give the bucket that belongs to this log directory (s3.data.buckets)"
        )
    if reason:
        raise BindingRefused(
            f"{bucket} is older than the metadata log: {reason}; nothing was changed: {REMEDY}"
        )


async def _older_claims(store: ObjectStore, cluster_id: str, image: MetadataImage, node_id: int) -> str:
    for series in (METADATA_SERIES, node_id):
        known = claimed_number(image, series, node_id)
        if not known:
            continue
        after = claim_key(cluster_id, series, known - 1)
        if not [entry.key async for entry in store.list(series_prefix(cluster_id, series), after)]:
            what = "the metadata log" if series == METADATA_SERIES else f"node {series}"
            return f"claim {known} of {what} was put into it, and neither that one nor a later one is there"
    return ""


async def _older_objects(store: ObjectStore, cluster_id: str, image: MetadataImage) -> str:
    newest = newest_committed(image)
    if len(newest) < NEWEST_ASKED:
        return ""
    entries = await asyncio.gather(*(store.head(object_key(cluster_id, object_id)) for object_id in newest))
    if any(entry is not None for entry in entries):
        return ""
    return f"objects {newest[-1]} to {newest[0]}, the newest that metadata has committed, are not in it"
