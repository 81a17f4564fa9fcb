"""EndFailover (private, key 526): a broker has recovered the write-ahead log of one that is gone, or cannot.

Recovered: the partitions that the one that is gone led are given to brokers that are there. Unable: another
broker is asked to do it. Sent again it changes nothing.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions


@dataclass(slots=True)
class EndFailoverRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    broker_id: Int32 = 0  # who asks
    broker_epoch: Int64 = -1
    node_id: Int32 = 0  # who is gone
    is_recovered: bool = False
    reason: str = ""  # why it cannot


@dataclass(slots=True)
class EndFailoverResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED: of who asks; INVALID_RECORD_STATE: another one does it, or
    # streams of the one that is gone are open still
    error_code: Int16 = 0
    error_message: str | None = None
