"""EndTxn (key 26): commits or aborts a transaction."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, wire


@dataclass(slots=True)
class EndTxnRequest:
    VERSIONS = Versions(0, 5, flexible=3)

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: bool = False  # False: abort


@dataclass(slots=True)
class EndTxnResponse:
    VERSIONS = Versions(0, 5, flexible=3)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    # from version 5 on the epoch is raised with every transaction (KIP-890)
    producer_id: Int64 = wire(-1, since=5, ignorable=True)
    producer_epoch: Int16 = wire(-1, since=5, ignorable=True)
