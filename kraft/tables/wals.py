"""Write-ahead logs by node: which one a node writes, who owns it, and up to where it is committed.

A node has one active log; one that another node is to recover, or that an operator gave up, stays in the list
until it holds nothing that anybody needs. Not here: commands, the log itself (wal/). Kept true: at most one
active log a node, `WALS_MAX` logs a node at most, and a log's position falls only where a loss was accepted:
an older copy of it goes on from its own end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import IntEnum

from millrace.kraft.tables.sorted_map import SortedMap
from millrace.protocol.dataclass import dataclass
from millrace.protocol.stream_records import NodeWalRecord

WALS_MAX = 8  # of one node
# Kinds whose logs several nodes have at one address: who writes its own there reaches the others'.
SHARED_KINDS = ("object",)


class WalState(IntEnum):
    """Stored in metadata: never renumber."""

    ACTIVE = 0  # its node appends to it, or may have when it ended
    RECOVERING = 1  # it is to be read, uploaded and discarded
    GIVEN_UP = 2  # an operator accepted the loss of what only it holds


@dataclass(frozen=True, slots=True)
class NodeWal:
    node_id: int
    wal_id: bytes  # 16 bytes drawn when the log was formatted; kept over resets and take-overs
    kind: str  # "block", "object", or a further kind's name
    address: str  # s3.wal.path without credentials, for sentences and for whoever recovers it
    owner_epoch: int  # the broker epoch under which it was opened last
    incarnation: bytes  # of the process that opened it last
    position: int  # everything that ends at or below it is committed as objects
    state: WalState
    # Of a log that was written before metadata was restored, or beside a majority that is gone: streams from
    # this id on may have been made after what is known, and are in no metadata. None: all that it holds are
    # known, or were deleted.
    unknown_from: int | None = None


@dataclass(frozen=True, slots=True)
class NodeWals:
    by_id: SortedMap[tuple[int, bytes], NodeWal]

    def of_node(self, node_id: int) -> list[NodeWal]:
        return [wal for wal in self if wal.node_id == node_id]

    def active(self, node_id: int) -> NodeWal | None:
        return next((wal for wal in self.of_node(node_id) if wal.state is WalState.ACTIVE), None)

    def last_written(self, node_id: int) -> NodeWal | None:
        """The active one, or, before the first start on restored metadata, the one that was."""
        recovering = (wal for wal in self.of_node(node_id) if wal.state is WalState.RECOVERING)
        newest = max(recovering, key=lambda wal: wal.owner_epoch, default=None)
        return self.active(node_id) or newest

    def may_hold_unknown(self, node_id: int) -> bool:
        """The log that the node wrote last was written beside metadata that is lost, and nobody has looked at
        it since."""
        last = self.last_written(node_id)
        return last is not None and last.state is WalState.RECOVERING and last.unknown_from is not None

    def get(self, node_id: int, wal_id: bytes) -> NodeWal | None:
        return self.by_id.get((node_id, wal_id))

    def __iter__(self) -> Iterator[NodeWal]:
        return self.by_id.values()

    def __len__(self) -> int:
        return len(self.by_id)

    def with_wal(self, wal: NodeWal) -> NodeWals:
        edit = self.by_id.edit()
        edit[wal.node_id, wal.wal_id] = wal
        return NodeWals(edit.done())

    def without(self, node_id: int, wal_id: bytes) -> NodeWals:
        edit = self.by_id.edit()
        edit.pop((node_id, wal_id))
        return NodeWals(edit.done())

    def with_position(self, node_id: int, wal_id: bytes, position: int) -> NodeWals:
        wal = self.by_id[node_id, wal_id]
        return self.with_wal(replace(wal, position=max(wal.position, position)))


NO_NODE_WALS = NodeWals(SortedMap())


def wal_of(record: NodeWalRecord) -> NodeWal:
    return NodeWal(
        record.node_id,
        record.wal_id,
        record.kind,
        record.address,
        record.owner_epoch,
        record.incarnation,
        record.position,
        WalState(record.state),
        record.unknown_from if record.unknown_from >= 0 else None,
    )


def wal_record(wal: NodeWal) -> NodeWalRecord:
    """The record that makes `wal` as it is now."""
    return NodeWalRecord(
        wal.node_id,
        wal.wal_id,
        wal.kind,
        wal.address,
        wal.owner_epoch,
        wal.incarnation,
        wal.position,
        int(wal.state),
        -1 if wal.unknown_from is None else wal.unknown_from,
    )
