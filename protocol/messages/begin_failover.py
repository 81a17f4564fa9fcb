"""BeginFailover (private, key 525): a broker acts for one that is fenced from now on, to recover its
write-ahead log.

The one that is gone gets a new epoch, and the incarnation named here: all that it still asks for itself is
refused, and what is asked in its name with that epoch is its recovery. It stays fenced. Sent again it changes
nothing.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions


@dataclass(slots=True)
class BeginFailoverRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    broker_id: Int32 = 0  # who asks
    broker_epoch: Int64 = -1
    node_id: Int32 = 0  # who is gone
    incarnation: Uuid = NO_UUID  # drawn for this recovery


@dataclass(slots=True)
class BeginFailoverResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED: of who asks; INVALID_RECORD_STATE: there is nothing to
    # recover, or another one does
    error_code: Int16 = 0
    error_message: str | None = None
    node_epoch: Int64 = -1  # of who is gone, from now on
