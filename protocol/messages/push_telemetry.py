"""PushTelemetry (key 72): client metrics, as OTLP (KIP-714)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int8, Int16, Int32, Uuid, Versions


@dataclass(slots=True)
class PushTelemetryRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    client_instance_id: Uuid = NO_UUID
    subscription_id: Int32 = 0
    terminating: bool = False  # the client is closing: the last push, whatever the interval
    compression_type: Int8 = 0
    metrics: bytes = b""  # OpenTelemetry MetricsData, compressed as said above


@dataclass(slots=True)
class PushTelemetryResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
