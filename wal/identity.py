"""What a write-ahead log says of itself before anybody opens it: its id, its last owner, and which metadata
it was written under. Pure.

Metadata lists the id of each node's log, and a log names the highest committed metadata offset that its owner
knew; so a start sees that one of the two is an older copy, or another node's. Not here: reading it (each
kind), judging it (broker/identity/binding.py). Kept true: an id is given once, at format, and kept over
resets and take-overs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millrace.protocol.dataclass import dataclass

WAL_ID_BYTES: Final = 16
NO_WAL_ID: Final = bytes(WAL_ID_BYTES)  # a log of millrace.version 0 has none


class MetadataMark(NamedTuple):
    """A place in the metadata log: everything below `offset` is committed, and the record before it is of
    quorum epoch `epoch`."""

    offset: int
    epoch: int


NO_MARK: Final = MetadataMark(0, -1)


@dataclass(frozen=True, slots=True)
class WalIdentity:
    """`owner_epoch` is the highest of an owner that recovered the log to its end; None where only opening it
    tells. `wal_id` is None where it cannot be read, though there is a log, and `cluster_id` and `node_id`
    too."""

    wal_id: bytes | None
    owner_epoch: int | None
    mark: MetadataMark
    cluster_id: str | None = None
    node_id: int | None = None
    # a lock alone fences it, and does not tell from here whether its owner lives: no other node may take it
    is_held_elsewhere: bool = False
