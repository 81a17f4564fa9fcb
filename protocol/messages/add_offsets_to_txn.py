"""AddOffsetsToTxn (key 25): tells the transaction coordinator that a group's offsets will be part of the
transaction."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions


@dataclass(slots=True)
class AddOffsetsToTxnRequest:
    VERSIONS = Versions(0, 4, flexible=3)

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: str = ""


@dataclass(slots=True)
class AddOffsetsToTxnResponse:
    VERSIONS = Versions(0, 4, flexible=3)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
