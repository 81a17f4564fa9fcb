"""Write-ahead logs (WALs) of a cluster's other brokers, as a restore sees them from where it runs. Pure.

Each is recovered by its broker, or by another that reaches it, once the restored cluster runs; a restore says
of each what waits for it. One of blocks that can be read from here tells of streams that the bucket knows
closed, and of such that it does not know. Not here: reading one (cli/restore_logs.py), the node's own
(restoring.py).
"""

from __future__ import annotations

from typing import Final

from millrace.broker.identity.unknown_streams import WalStream
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.wals import SHARED_KINDS, NodeWal
from millrace.protocol.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SeenLog:
    """`reason`: why it cannot be looked at from here; "" where it is there. `streams`: of one of blocks, what
    it holds of each."""

    reason: str = ""
    streams: tuple[WalStream, ...] = ()


NOT_LOOKED_AT: Final = SeenLog("it was not looked at")


def others_of(image: MetadataImage, own: int) -> list[NodeWal]:
    """The logs that other brokers wrote last, by node."""
    nodes = {wal.node_id: None for wal in image.wals if wal.node_id != own}
    return [wal for node_id in nodes if (wal := image.wals.last_written(node_id)) is not None]


def log_text(image: MetadataImage, wal: NodeWal, seen: SeenLog) -> str:
    """What becomes of it, in a sentence."""
    open_count = sum(1 for _ in image.streams.open_on(wal.node_id))
    owes_count = sum(1 for _ in image.streams.owed.of_node(wal.node_id))
    held = f"{open_count} streams are open in it" if open_count else "no stream is open in it"
    if owes_count:
        held += f", and it owes some of {owes_count} streams that others went on with"
    words = f"node {wal.node_id}: the {wal.kind} log {wal.wal_id.hex()} at {wal.address}: {held}"
    if seen.reason and wal.kind not in SHARED_KINDS:
        words += "; what it took of streams that it opened after the bucket's newest metadata is not known"
    is_needed = bool(open_count or owes_count)
    if not seen.reason and is_needed:
        return f"{words}; it is there, and is recovered by node {wal.node_id}, or by another that reaches it"
    if not seen.reason:
        return f"{words}; it is there"
    if not is_needed:
        return f"{words}; it is not seen from here ({seen.reason})"
    return (
        f"{words}; it is not seen from here ({seen.reason}): node {wal.node_id}, or another that reaches "
        f"it, has to recover it; where it is lost: millrace cluster give-up {wal.node_id} --accept-loss"
    )


def unnamed_text(node_id: int) -> str:
    """Of a node that metadata names no log of, and that was not stopped in order."""
    return (
        f"node {node_id} is not known: where it acknowledged records, they are in its log alone, of topics "
        "or streams that the bucket does not know; it asks about them when it is started with that log"
    )
