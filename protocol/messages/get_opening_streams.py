"""GetOpeningStreams (private, key 502): the streams a node has open, and what its write-ahead log owes of
others, asked once at its start, for recovery.

That it is answered means that the broker epoch given is the node's newest: what an older one still asks for
is refused.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array


@dataclass(slots=True)
class GetOpeningStreamsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = 0
    broker_epoch: Int64 = -1


@dataclass(slots=True)
class OpeningStream:
    stream_id: Int64 = 0
    epoch: Int64 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = 0  # of what is committed as objects


@dataclass(slots=True)
class OwedStream:
    stream_id: Int64 = 0
    epoch: Int64 = 0  # under which the node appended it
    start_offset: Int64 = 0  # all of [start, end) is in the node's write-ahead log alone
    end_offset: Int64 = 0


@dataclass(slots=True)
class GetOpeningStreamsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    error_code: Int16 = 0  # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED
    error_message: str | None = None
    streams: list[OpeningStream] = array()
    owed: list[OwedStream] = array(tag=0)  # of streams that are closed; from millrace.version 3 on
