"""Judges whether a write-ahead log (WAL) and the metadata log of a node belong to each other and are of the same age. Pure.

Metadata names the node's WAL by its id, its last owner's epoch and the position up to which it is committed; the WAL names the
highest committed metadata offset that its owner knew. A WAL that is another one, or an older copy, lacks records that
were acknowledged; a metadata log that is an older copy would give offsets and object ids a second time. Either start is
refused before anything is changed, with the remedy; `wal.lost.accept` gives up what only a WAL held, and never helps
against an old metadata log. Not seen: a WAL that was copied after the last commit and brought back while nothing newer
was written anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.broker.binding import BindingRefused
from millrace.kraft.image import MetadataImage
from millrace.kraft.log_view import LogHistory
from millrace.kraft.tables.wals import NodeWal, WalState
from millrace.wal.identity import NO_WAL_ID, WalIdentity

ACCEPT = "start once with wal.lost.accept=true, which gives up the records that only it held"


@dataclass(frozen=True, slots=True)
class WalBinding:
    """What a start does with the WAL that it found. A WAL that ends below `committed_end` lacks records."""

    is_lost: bool = False  # and the loss was accepted
    is_foreign: bool = False  # not the registered one: what it may hold is not recovered
    committed_end: int = -1


def judge_wal(
    found: WalIdentity | None,
    path: str,
    image: MetadataImage,
    history: LogHistory,
    node_id: int,
    cluster_id: str,
    *,
    is_acceptable: bool,
) -> WalBinding:
    """`found`: what the WAL at `path` says of itself, None where there is none. `history` is the metadata log's as the start found it.
    `is_acceptable` is wal.lost.accept. Raises BindingRefused."""
    if found is not None and found.cluster_id not in (None, cluster_id):
        raise BindingRefused(
            f"the WAL {path} belongs to cluster {found.cluster_id}, and this is cluster {cluster_id}: give the WAL that belongs to this "
            "node (s3.wal.path)"
        )
    open_count = sum(1 for _ in image.streams.open_on(node_id))
    registered = image.wals.active(node_id)
    if found is not None:
        _check_metadata_age(found, path, image, history, node_id)
    fault = _fault(found, path, registered, open_count)
    if fault is None:
        is_foreign = _is_other(found, registered)
        is_known = found is not None and registered is not None and not is_foreign
        return WalBinding(is_foreign=is_foreign, committed_end=registered.position if registered and is_known else -1)
    if not is_acceptable:
        raise BindingRefused(fault)
    return WalBinding(is_lost=True, is_foreign=_is_other(found, registered))


def _is_other(found: WalIdentity | None, registered: NodeWal | None) -> bool:
    """Whether there is a WAL, and it is certainly not the registered one."""
    if found is None or found.wal_id is None or registered is None:
        return False
    return found.wal_id != registered.wal_id


def _fault(found: WalIdentity | None, path: str, registered: NodeWal | None, open_count: int) -> str | None:
    """Why acknowledged records would be lost with this WAL."""
    if found is None:
        if not open_count:
            return None
        had = "" if registered is None else f" It had the WAL {registered.wal_id.hex()} at {registered.address}."
        return (
            f"the WAL {path} is new, but {open_count} streams were open when this node ended: records that were acknowledged may be "
            f"in the WAL it had.{had} Put that back (s3.wal.path), or {ACCEPT}"
        )
    if registered is None:
        return None
    if found.wal_id is not None and found.wal_id != registered.wal_id:
        if not open_count:
            return None
        return (
            f"the WAL {path} ({name_of(found.wal_id)}) is not the one that this node wrote last, {registered.wal_id.hex()} at "
            f"{registered.address}, in which {open_count} streams are open: put that back (s3.wal.path), or {ACCEPT}"
        )
    if found.owner_epoch is not None and found.owner_epoch < registered.owner_epoch:
        return (
            f"the WAL {path} is an older copy: its last owner had epoch {found.owner_epoch}, and metadata knows of {registered.owner_epoch}: "
            f"put the current volume back, or {ACCEPT}"
        )
    return None


def _check_metadata_age(found: WalIdentity, path: str, image: MetadataImage, history: LogHistory, node_id: int) -> None:
    registered = None if found.wal_id is None else image.wals.get(node_id, found.wal_id)
    if registered is not None and registered.state is WalState.RECOVERING:
        return  # metadata was restored, and is known to be older
    if not history.has(found.mark.offset, found.mark.epoch):
        raise BindingRefused(
            f"the metadata log is older than the WAL {path}: the WAL was written when metadata was committed up to offset "
            f"{found.mark.offset} of epoch {found.mark.epoch}, and the metadata log ends at {history.end}: put the current metadata log "
            "directory back (log.dirs), or build a new one from the bucket with `millrace restore`"
        )


def name_of(wal_id: bytes) -> str:
    return "which has no id yet" if wal_id == NO_WAL_ID else wal_id.hex()
