"""CloseStreams (private, key 504): the owner of streams lets them go. All it wrote must have been committed
before."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array


@dataclass(slots=True)
class StreamClose:
    stream_id: Int64 = 0
    epoch: Int64 = 0


@dataclass(slots=True)
class CloseStreamsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = 0
    broker_epoch: Int64 = -1
    streams: list[StreamClose] = array()


@dataclass(slots=True)
class ClosedStream:
    stream_id: Int64 = 0
    error_code: Int16 = 0  # RESOURCE_NOT_FOUND: no such stream; FENCED_LEADER_EPOCH: not the owner


@dataclass(slots=True)
class CloseStreamsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    error_code: Int16 = 0  # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED
    error_message: str | None = None
    streams: list[ClosedStream] = array()
