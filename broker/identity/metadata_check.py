"""Whether the bucket knows newer metadata than the local metadata log: asked before a start changes anything,
and before anything is deleted.

A log directory that was restored from an older copy, or cloned, would give offsets and object ids a second
time. The bucket tells: its snapshots and pieces name the highest committed offset and its quorum epoch, and
an object under an id that this metadata has not given yet was put by newer metadata. A writer that was
replaced may have put some more before it saw that: metadata of an epoch below the one in which the log was
claimed last is passed over. Not here: the write-ahead log's word (wal_binding.py), claims.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from millrace.broker.identity.binding import BindingRefused
from millrace.broker.identity.claims import NO_CLAIMS, NewestClaims
from millrace.kraft.bucket.reader import BucketMetadata, survey
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.claim_basis import ClaimBasis, forget_claim_basis, read_claim_basis, write_claim_basis
from millrace.kraft.log.restored_from import read_restored_from, write_restored_from
from millrace.kraft.raft.log_view import LogHistory
from millrace.runtime.disk import Disk
from millrace.runtime.objectstore import ObjectStore
from millrace.s3stream.ids import ObjectId, Writer, token_of
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.objects.placing import writer_at

log = logging.getLogger(__name__)
NEXT_IDS_ASKED: Final = 4  # ids may be given and never put: a few are looked for
REMEDY: Final = (
    "put the current metadata log directory back (log.dirs), or build a new one from the bucket "
    "with `millrace restore`"
)


def newer_metadata(found: BucketMetadata, history: LogHistory, claimed_epoch: int = -1) -> str | None:
    """Why the local log is not the one whose metadata the bucket holds, or an older copy of it; None where it
    has everything that counts. `claimed_epoch`: the quorum epoch of the newest claim on the log, which the
    local log knows; whoever wrote under a lower one has been replaced. -1: there is no claim."""
    for end, epoch in sorted(found.names, reverse=True):
        if epoch < claimed_epoch and not (end <= history.end and history.has(end, epoch)):
            log.warning(
                "the bucket holds metadata up to offset %d of epoch %d from a process that was replaced in "
                "epoch %d: it is passed over",
                end,
                epoch,
                claimed_epoch,
            )
            continue
        if end > history.end:
            return (
                f"the bucket holds metadata up to offset {end} of epoch {epoch}, and the local log ends "
                f"at {history.end}"
            )
        if not history.has(end, epoch):
            return (
                f"the bucket holds other metadata at offset {end}, of epoch {epoch}: two copies of one "
                "log have both been written"
            )
    return None


async def newer_objects(
    store: ObjectStore, cluster_id: str, image: MetadataImage, owner: Writer | None = None
) -> str | None:
    """The same told by an object that this metadata has not given an id for; None where there is none.
    `owner`: who claimed the node last, and is known to this metadata; it also knows all that was given before
    that claim, so such an object of another one's was put by a process that was replaced."""
    next_id = image.objects.next_id
    keys = [object_key(cluster_id, ObjectId(next_id + place)) for place in range(NEXT_IDS_ASKED)]
    for key, entry in zip(keys, await asyncio.gather(*map(store.head, keys)), strict=True):
        if entry is None:
            continue
        writer = await writer_at(store, key)
        if owner is not None and writer is not None and writer.node_id == owner.node_id and writer != owner:
            log.warning("%s was put by %s, which was replaced: it is passed over", key, writer)
        else:
            return f"the bucket holds {key}, whose id the local metadata has not given yet"
    return None


async def check_metadata(
    store: ObjectStore,
    bucket: str,
    cluster_id: str,
    image: MetadataImage,
    history: LogHistory,
    claims: NewestClaims = NO_CLAIMS,
) -> BucketMetadata:
    """What the bucket holds of this log. Raises BindingRefused, with nothing changed, where that is newer
    than the local log, and what the store raises."""
    found = await survey(store, cluster_id)
    of_log, of_node = claims
    owner = None if of_node is None else Writer(of_node.series, token_of(of_node.incarnation))
    claimed_epoch = -1 if of_log is None else of_log.metadata_epoch
    reason = newer_metadata(found, history, claimed_epoch)
    reason = reason or await newer_objects(store, cluster_id, image, owner)
    if reason is not None:
        raise BindingRefused(f"the metadata log is older than {bucket}: {reason}: {REMEDY}")
    return found.within(history)


async def note_claim_basis(disk: Disk, log_dir: str, epoch: int, end: int) -> None:
    """Before the node is claimed: where its metadata log ends. What an earlier start left, whose comparison
    did not come about, stays."""
    if await read_claim_basis(disk, log_dir) is None:
        await write_claim_basis(disk, log_dir, ClaimBasis(epoch, end))


async def check_claim_basis(
    store: ObjectStore, bucket: str, cluster_id: str, disk: Disk, log_dir: str
) -> None:
    """Of a node whose write-ahead log lies in a store, once it is claimed: raises BindingRefused where the
    bucket's metadata has grown since the start looked at it. Then another process, of which this log
    directory is a copy, was still at work: what it committed meanwhile it has trimmed from the log that both
    share, and it is not known here. It asks for a newer owner between the two (s3stream/uploader.py), so what
    is not seen here was not trimmed. Cancelled or failed, the next start asks again."""
    basis = await read_claim_basis(disk, log_dir)
    if basis is None:
        return
    highest = (await survey(store, cluster_id)).highest
    if highest is not None and highest[::-1] > basis:
        raise BindingRefused(
            f"{bucket} held metadata up to offset {basis.end} when this start set out to claim the node, and "
            f"holds it up to {highest[0]} "
            "now: another process on a copy of this log directory was still at work, and committed what is "
            "not known here. Nothing is "
            f"served: see that that process has ended, empty {log_dir} and build it again from the bucket "
            "with `millrace restore`"
        )
    await forget_claim_basis(disk, log_dir)


async def check_restored_from(
    store: ObjectStore, bucket: str, cluster_id: str, disk: Disk, log_dir: str
) -> None:
    """Of a log directory's first start after a restore, once the node is claimed: raises BindingRefused where
    the bucket is an older one than it was restored from, and where its metadata has grown since it was read.
    Then whoever had the node was still at work, and what it committed, and trimmed from its WAL for that, is
    not known here. It asks for a newer owner between the two (s3stream/uploader.py), so what is not seen here
    was not trimmed. Cancelled or failed, the next start asks again."""
    basis = await read_restored_from(disk, log_dir)
    if basis is None or basis.is_compared:
        return
    highest = (await survey(store, cluster_id)).highest
    if highest is None or highest[::-1] < (basis.epoch, basis.end):
        held = "nothing" if highest is None else f"metadata up to offset {highest[0]} of epoch {highest[1]}"
        raise BindingRefused(
            f"this log directory was restored from a bucket that held metadata up to offset {basis.end} of "
            f"epoch {basis.epoch}, and {bucket} holds {held}: it is an older copy, or another one. Nothing "
            "is served, and nothing was recovered into it: start with the bucket that the directory was "
            "restored from"
        )
    if highest[::-1] > (basis.epoch, basis.end):
        raise BindingRefused(
            f"{bucket} held metadata up to offset {basis.end} when this log directory was restored from it, "
            f"and holds it up to {highest[0]} now: "
            "the process that had the node was still at work, or the bucket is a copy that had not arrived "
            "whole. Nothing is served, "
            "for what was committed since is not known here: see that that process has ended, empty "
            f"{log_dir} and run `millrace restore` again"
        )
    await write_restored_from(disk, log_dir, replace(basis, is_compared=True))
