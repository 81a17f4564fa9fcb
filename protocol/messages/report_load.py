"""ReportLoad (private, key 528): a broker tells the controller that leads what its partitions have moved.

It travels as a ForwardCommand, and decides nothing; a controller that is told by nobody balances nothing.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions, array, wire


@dataclass(slots=True)
class LoadedPartition:
    """Bytes of record batches a second."""

    index: Int32 = 0
    in_rate: Int64 = 0
    out_rate: Int64 = 0


@dataclass(slots=True)
class LoadedTopic:
    topic_id: Uuid = wire(NO_UUID)
    partitions: list[LoadedPartition] = array()


@dataclass(slots=True)
class ReportLoadRequest:
    """Partitions that moved nothing worth telling are left out."""

    VERSIONS = Versions(0, 0, flexible=0)

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    topics: list[LoadedTopic] = array()


@dataclass(slots=True)
class ReportLoadResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    error_code: Int16 = 0
