"""PrepareObjects (private, key 505): reserves consecutive object ids before their objects are written to the
store."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions


@dataclass(slots=True)
class PrepareObjectsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = 0
    broker_epoch: Int64 = -1
    object_count: Int32 = 0
    ttl_ms: Int64 = 0  # what is not committed by then is deleted from the store
    # token of the incarnation that will write them: the registered one's; 0 at millrace.version 0
    writer: Int64 = 0


@dataclass(slots=True)
class PrepareObjectsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED, INVALID_REQUEST, KAFKA_STORAGE_ERROR
    error_code: Int16 = 0
    error_message: str | None = None
    first_object_id: Int64 = -1
