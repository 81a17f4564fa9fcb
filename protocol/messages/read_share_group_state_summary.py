"""ReadShareGroupStateSummary (key 87): start offsets of share partitions without the states of records, from
the share coordinator (KIP-932)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions, array, wire


@dataclass(slots=True)
class PartitionData:
    partition: Int32 = 0
    leader_epoch: Int32 = 0


@dataclass(slots=True)
class ReadStateSummaryData:
    topic_id: Uuid = NO_UUID
    partitions: list[PartitionData] = array()


@dataclass(slots=True)
class ReadShareGroupStateSummaryRequest:
    VERSIONS = Versions(0, 1, flexible=0)

    group_id: str = ""
    topics: list[ReadStateSummaryData] = array()


@dataclass(slots=True)
class PartitionResult:
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    # settled offsets at or above the start; -1: unknown
    delivery_complete_count: Int32 = wire(-1, since=1, ignorable=True)


@dataclass(slots=True)
class ReadStateSummaryResult:
    topic_id: Uuid = NO_UUID
    partitions: list[PartitionResult] = array()


@dataclass(slots=True)
class ReadShareGroupStateSummaryResponse:
    VERSIONS = Versions(0, 1, flexible=0)

    results: list[ReadStateSummaryResult] = array()
