"""TrimStreams (private, key 503): moves the starts of streams forward, by their owner. What lies below may be
deleted."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array


@dataclass(slots=True)
class StreamTrim:
    stream_id: Int64 = 0
    epoch: Int64 = 0
    start_offset: Int64 = 0  # at or below the stream's start: no error, and no effect


@dataclass(slots=True)
class TrimStreamsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = 0
    broker_epoch: Int64 = -1
    streams: list[StreamTrim] = array()


@dataclass(slots=True)
class TrimmedStream:
    stream_id: Int64 = 0
    # RESOURCE_NOT_FOUND: no such stream; FENCED_LEADER_EPOCH: not the owner, or not open
    error_code: Int16 = 0


@dataclass(slots=True)
class TrimStreamsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    error_code: Int16 = 0  # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED
    error_message: str | None = None
    streams: list[TrimmedStream] = array()
