"""SealStreams (private, key 529): the owner of streams lets them go at their true ends. What is not committed
of them by then its write-ahead log owes: the owner commits it later. From millrace.version 3 on."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array


@dataclass(slots=True)
class StreamSeal:
    stream_id: Int64 = 0
    epoch: Int64 = 0
    start_offset: Int64 = 0  # nothing below it is read any more; at or below the end
    end_offset: Int64 = 0  # exclusive: all below it is durable in the owner's write-ahead log, or committed


@dataclass(slots=True)
class SealStreamsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = 0
    broker_epoch: Int64 = -1
    streams: list[StreamSeal] = array()


@dataclass(slots=True)
class SealedStream:
    stream_id: Int64 = 0
    # RESOURCE_NOT_FOUND: no such stream; FENCED_LEADER_EPOCH: not the owner; OFFSET_OUT_OF_RANGE: more than
    # that is committed, or the start lies behind the end; INVALID_RECORD_STATE: too much of it is owed, close
    # it once all of it is committed
    error_code: Int16 = 0


@dataclass(slots=True)
class SealStreamsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED; UNSUPPORTED_VERSION: below millrace.version 3
    error_code: Int16 = 0
    error_message: str | None = None
    streams: list[SealedStream] = array()
