"""GetTelemetrySubscriptions (key 71): which client metrics a broker wants (KIP-714).

Advertised only where somebody receives them: librdkafka begins to push as soon as it sees these keys.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int8, Int16, Int32, Uuid, Versions, array


@dataclass(slots=True)
class GetTelemetrySubscriptionsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    client_instance_id: Uuid = NO_UUID  # zero the first time


@dataclass(slots=True)
class GetTelemetrySubscriptionsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    client_instance_id: Uuid = NO_UUID
    subscription_id: Int32 = 0
    accepted_compression_types: list[Int8] = array()  # by preference
    push_interval_ms: Int32 = 0
    telemetry_max_bytes: Int32 = 0
    delta_temporality: bool = False
    requested_metrics: list[str] = array()  # prefixes; none: nothing; an empty one: all
