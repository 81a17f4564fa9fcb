"""AllocateProducerIds (key 67): a broker leases a block of producer ids from the controller."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions


@dataclass(slots=True)
class AllocateProducerIdsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


@dataclass(slots=True)
class AllocateProducerIdsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id_start: Int64 = 0
    producer_id_len: Int32 = 0  # ids from producer_id_start on
