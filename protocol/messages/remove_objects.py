"""RemoveObjects (private, key 507): the files of objects pending deletion are gone from the store; their ids
may be forgotten."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array


@dataclass(slots=True)
class RemoveObjectsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = 0  # -1: the active controller
    broker_epoch: Int64 = -1
    object_ids: list[Int64] = array()  # an id that nobody knows is passed over


@dataclass(slots=True)
class RemoveObjectsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED; INVALID_RECORD_STATE: one is not pending deletion
    error_code: Int16 = 0
    error_message: str | None = None
