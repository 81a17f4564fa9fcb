"""Judges whether a write-ahead log (WAL) and the metadata log of a node belong to each other and are of the
same age. Pure.

Metadata names the node's WAL by its id, its last owner's epoch and the position up to which it is committed;
the WAL names the highest committed metadata offset that its owner knew. A WAL that is another one, or an
older copy, lacks records that were acknowledged; a metadata log that is an older copy would give offsets and
object ids a second time. Either start is refused before anything is changed, with the remedy;
`wal.lost.accept` gives up what only a WAL held, and never helps against an old metadata log. A restored
metadata log names its WAL as to be recovered, and knows up to where it was committed when the bucket was
told: that WAL is held to it as well. Not seen: a WAL that was copied after the last commit and brought back
while nothing newer was written anywhere.
"""

from __future__ import annotations

from millrace.broker.identity.binding import BindingRefused
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.raft.log_view import LogHistory
from millrace.kraft.tables.wals import NodeWal, WalState
from millrace.protocol.dataclass import dataclass
from millrace.wal.identity import NO_WAL_ID, MetadataMark, WalIdentity

ACCEPT = "start once with wal.lost.accept=true, which gives up the records that only it held"


@dataclass(frozen=True, slots=True)
class WalBinding:
    """What a start does with the WAL that it found. A WAL that ends below `committed_end` lacks records."""

    is_lost: bool = False  # and the loss was accepted
    is_foreign: bool = False  # another one, or as an earlier owner left it: what it may hold is not recovered
    # as an earlier owner left it: who opens it is its last owner, and it looks like any other then
    is_older: bool = False
    committed_end: int = -1
    # metadata names no log of the node, though each is named before its first record: what it holds was
    # written under later metadata than was restored
    is_unlisted: bool = False


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
    """`found`: what the WAL at `path` says of itself, None where there is none. `history` is the metadata
    log's as the start found it. `is_acceptable` is wal.lost.accept. Raises BindingRefused."""
    if found is not None and found.cluster_id not in (None, cluster_id):
        raise BindingRefused(
            f"the WAL {path} belongs to cluster {found.cluster_id}, and this is cluster {cluster_id}: give "
            "the WAL that belongs to this "
            "node (s3.wal.path)"
        )
    if found is not None and found.node_id not in (None, node_id):
        raise BindingRefused(
            f"the WAL {path} belongs to node {found.node_id}, and this is node {node_id}: give the WAL that "
            "belongs to this node (s3.wal.path); "
            f"where it is lost, give a file or device that is empty, and {ACCEPT}"
        )
    open_count = len(image.streams.in_log_of(node_id))
    registered = image.wals.last_written(node_id)
    if found is not None:
        _check_metadata_age(found, path, image, history, node_id)
    fault = _fault(found, path, registered, open_count)
    if fault is None:
        is_foreign = _is_other(found, registered)
        is_known = found is not None and registered is not None and not is_foreign
        end = registered.position if registered and is_known else -1
        is_listed = registered is not None or found is None or found.wal_id in (None, NO_WAL_ID)
        return WalBinding(is_foreign=is_foreign, committed_end=end, is_unlisted=not is_listed)
    if not is_acceptable:
        raise BindingRefused(fault)
    is_older = not _is_other(found, registered) and _is_of_earlier_owner(found, registered)
    return WalBinding(is_lost=True, is_foreign=_is_other(found, registered) or is_older, is_older=is_older)


def _is_other(found: WalIdentity | None, registered: NodeWal | None) -> bool:
    """Whether there is a WAL, and it is certainly not the registered one."""
    if found is None or found.wal_id is None or registered is None:
        return False
    return found.wal_id != registered.wal_id


def _is_of_earlier_owner(found: WalIdentity | None, registered: NodeWal | None) -> bool:
    """Whether the WAL is the registered one as an earlier owner left it. The registered owner committed all
    that it found of that one before it was registered: what such a copy holds beyond was given up, and its
    offsets may have been given to other records since."""
    if found is None or found.owner_epoch is None or registered is None:
        return False
    return found.owner_epoch < registered.owner_epoch


def _fault(found: WalIdentity | None, path: str, registered: NodeWal | None, open_count: int) -> str | None:
    """Why acknowledged records would be lost with this WAL."""
    if found is None:
        if not open_count:
            return None
        had = (
            ""
            if registered is None
            else f" It had the WAL {registered.wal_id.hex()} at {registered.address}."
        )
        return (
            f"the WAL {path} is new, but {open_count} streams were open when this node ended: records that "
            "were acknowledged may be "
            f"in the WAL it had.{had} Put that back (s3.wal.path), or {ACCEPT}"
        )
    if registered is None:
        return None
    if found.wal_id is not None and found.wal_id != registered.wal_id:
        if not open_count:
            return None
        return (
            f"the WAL {path} ({name_of(found.wal_id)}) is not the one that this node wrote last, "
            f"{registered.wal_id.hex()} at "
            f"{registered.address}, in which {open_count} streams are open: put that back (s3.wal.path), or "
            f"{ACCEPT}"
        )
    if _is_of_earlier_owner(found, registered):
        return (
            f"the WAL {path} is an older copy: its last owner had epoch {found.owner_epoch}, and metadata "
            f"knows of {registered.owner_epoch}: "
            f"put the current volume back, or {ACCEPT}"
        )
    return None


def _check_metadata_age(
    found: WalIdentity, path: str, image: MetadataImage, history: LogHistory, node_id: int
) -> None:
    fault = None if _is_restored(found.wal_id, image, node_id) else _age_fault(found.mark, path, history)
    if fault is not None:
        raise BindingRefused(
            f"{fault}: put the current metadata log directory back (log.dirs), or build a new one from the "
            "bucket with `millrace restore`"
        )


def check_found_mark(
    mark: MetadataMark, wal_id: bytes, path: str, image: MetadataImage, history: LogHistory, node_id: int
) -> None:
    """Of a log in a store, once it is taken: `mark` is what it named then. Raises BindingRefused where
    somebody wrote to it since `judge_wal` who knew other metadata. That shows at every further start as well,
    for a log is taken without a mark of its own."""
    fault = None if _is_restored(wal_id, image, node_id) else _age_fault(mark, path, history)
    if fault is not None:
        raise BindingRefused(
            f"{fault}: another process on a copy of this log directory was still at work as this start "
            "began, and committed what is not "
            "known here. Nothing is served: see that that process has ended, empty the log directory "
            "(log.dirs) and build it again from "
            "the bucket with `millrace restore`"
        )


def _is_restored(wal_id: bytes | None, image: MetadataImage, node_id: int) -> bool:
    """Whether metadata was restored beside that WAL: it is known to be older."""
    registered = None if wal_id is None else image.wals.get(node_id, wal_id)
    return registered is not None and registered.state is WalState.RECOVERING


def _age_fault(mark: MetadataMark, path: str, history: LogHistory) -> str | None:
    if history.has(mark.offset, mark.epoch):
        return None
    return (
        f"the metadata log is older than the WAL {path}: the WAL was written when metadata was committed up "
        f"to offset {mark.offset} of "
        f"epoch {mark.epoch}, and the metadata log ends at {history.end}"
    )


def name_of(wal_id: bytes) -> str:
    return "which has no id yet" if wal_id == NO_WAL_ID else wal_id.hex()
