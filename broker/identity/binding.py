"""What binds log directory, WAL and bucket to one cluster: the metadata log knows the cluster's id, the
bucket holds it under one key.

A log directory that is new may not meet a WAL or a bucket that are not: what they hold would be overwritten
by a cluster that does not know of it. Nor may one that was used meet a bucket without its objects, or a WAL
that is new while it may have held acknowledged records: what is missing would be lost without a word. Each
refusal names the remedy. The WAL's own header guards it against another cluster's or node's broker.
"""

from __future__ import annotations

import json
import logging

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.objects import ObjectState
from millrace.runtime.errors import MillraceError
from millrace.runtime.objectstore import ObjectMissing, ObjectStore, PreconditionFailed
from millrace.runtime.objectstore.rounds import EXISTS, NOT_THERE, contradiction
from millrace.s3stream.objects.keys import object_key

log = logging.getLogger(__name__)

MARKER_KEY = "millrace-cluster"


class BindingRefused(MillraceError):
    """Log directory, WAL and bucket do not belong together."""


async def read_bound_cluster(store: ObjectStore, bucket: str) -> str | None:
    """The id of the cluster that a bucket belongs to, None when it was never used. Raises BindingRefused
    where the marker names none."""
    try:
        content = await store.get(MARKER_KEY)
    except ObjectMissing:
        return None
    try:
        return str(json.loads(content)["cluster_id"])
    except (ValueError, KeyError, TypeError):
        raise BindingRefused(
            f"the object {MARKER_KEY} in {bucket} does not say which cluster the bucket belongs to: it is "
            "damaged; "
            "remove it, and it is written again if the bucket holds this cluster's objects; a restore needs "
            "cluster.id then"
        ) from None


def check_first_start(is_wal_used: bool, wal_path: str, bucket: str, bound_cluster: str | None) -> None:
    """The log directory is empty: so must be the WAL and the bucket. Else raises BindingRefused."""
    if bound_cluster is not None:
        raise BindingRefused(
            f"the metadata log directory is empty, but {bucket} holds the data of cluster {bound_cluster}: "
            "restore the log directory (log.dirs) of that cluster from a copy, or build it from the bucket "
            "with `millrace restore`, or give an "
            "empty bucket"
        )
    if is_wal_used:
        raise BindingRefused(
            f"the metadata log directory is empty, but the WAL {wal_path} is in use: "
            "restore the log directory (log.dirs) that belongs to it, or remove the WAL if its data is not "
            "needed"
        )


def check_first_look(was_new: bool, is_new: bool, log_dir: str) -> None:
    """A log that this start had to make is one that it set out to make. Else raises BindingRefused: neither
    the WAL nor the bucket was looked at for a first start."""
    if is_new and not was_new:
        raise BindingRefused(
            f"{log_dir}: another start made a metadata log here and took it back meanwhile: start again"
        )


async def bind_bucket(
    store: ObjectStore,
    bucket: str,
    bound_cluster: str | None,
    cluster_id: str,
    image: MetadataImage,
    *,
    is_remote: bool = False,
) -> None:
    """On return the bucket is this cluster's, durably. Raises BindingRefused when it is another's, or has
    lost what metadata says it holds (one object is looked for). A remote store's word on conditional puts is
    not taken untried."""
    if bound_cluster is None:
        await _check_witness(store, bucket, cluster_id, image)
        content = json.dumps({"version": 1, "cluster_id": cluster_id}).encode()
        fault = await _condition_fault(store, cluster_id) if is_remote else None
        try:
            if fault is None:
                await store.put_if_absent(MARKER_KEY, [content])
                return
            log.warning(
                "%s %s: that no other cluster takes it at this very moment is not guarded; from its next "
                "start on it is",
                bucket,
                fault,
            )
            bound_cluster = await _bind_unguarded(store, bucket, content)
        except PreconditionFailed:
            bound_cluster = await read_bound_cluster(store, bucket)
            if bound_cluster is None:
                raise contradiction(MARKER_KEY, EXISTS, NOT_THERE, 1) from None
    if bound_cluster != cluster_id:
        raise BindingRefused(
            f"{bucket} holds the data of cluster {bound_cluster}, and this node belongs to cluster "
            f"{cluster_id}: "
            "give this cluster a bucket of its own, or the log directory that belongs to that bucket"
        )


async def _condition_fault(store: ObjectStore, cluster_id: str) -> str | None:
    from millrace.runtime.objectstore.probe import conditional_put_fault  # once in the life of a bucket

    return await conditional_put_fault(store, f"{MARKER_KEY}-test-{cluster_id}/")


async def _bind_unguarded(store: ObjectStore, bucket: str, content: bytes) -> str | None:
    """Looks, puts, looks again: whom the bucket belongs to then."""
    bound_cluster = await read_bound_cluster(store, bucket)
    if bound_cluster is not None:
        return bound_cluster
    await store.put(MARKER_KEY, [content])
    return await read_bound_cluster(store, bucket)


async def _check_witness(store: ObjectStore, bucket: str, cluster_id: str, image: MetadataImage) -> None:
    committed = (id_ for id_, stored in image.objects.by_id.items() if stored.state is ObjectState.COMMITTED)
    witness = next(committed, None)
    if witness is not None and await store.head(object_key(cluster_id, witness)) is None:
        raise BindingRefused(
            f"{bucket} holds nothing of cluster {cluster_id}, whose metadata names "
            f"{image.objects.committed_count} objects in it: "
            "give the bucket that belongs to this log directory (s3.data.buckets)"
        )
