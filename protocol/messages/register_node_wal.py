"""RegisterNodeWal (private, key 522): a node has opened its write-ahead log and is about to append to it.

Answered once the log's identity is durable in metadata. The node's active log of another id is removed from
metadata, or, when its loss was accepted, kept as given up. Sent again it changes nothing. At millrace.version
0 nothing is recorded.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions


@dataclass(slots=True)
class RegisterNodeWalRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = 0
    broker_epoch: Int64 = -1
    wal_id: Uuid = NO_UUID
    kind: str = ""
    address: str = ""
    position: Int64 = 0  # everything that ends at or below it is committed
    is_loss_accepted: bool = False  # of what only another active log holds, or this one's end that is gone


@dataclass(slots=True)
class RegisterNodeWalResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED, INVALID_RECORD_STATE: streams are open in another log
    error_code: Int16 = 0
    error_message: str | None = None
