"""ReadOwedRange (private, key 530): the owner of a stream reads what an earlier owner's write-ahead log owes
of it. Asked of that broker, at a listener for clients, which shows it to nobody; from millrace.version 3
on."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions


@dataclass(slots=True)
class ReadOwedRangeRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    stream_id: Int64 = 0
    epoch: Int64 = 0  # of the stream, under which the broker appended what it owes
    # Of its log, where metadata knows it: another process at its address, or it with another log, owes
    # nothing.
    wal_id: Uuid = NO_UUID
    offset: Int64 = 0
    max_bytes: Int32 = 0  # the first entry is given whole, further ones while they fit


@dataclass(slots=True)
class ReadOwedRangeResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    # FENCED_LEADER_EPOCH: nothing of it is owed here under that epoch, or by that log: look at the metadata;
    # OFFSET_OUT_OF_RANGE: what is owed does not hold the offset
    error_code: Int16 = 0
    error_message: str | None = None
    entries: bytes = b""  # one behind the other, each as in the write-ahead log, with its checksum
