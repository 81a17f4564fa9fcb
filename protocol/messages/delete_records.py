"""DeleteRecords (key 21): moves the log start of partitions forward."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array


@dataclass(slots=True)
class DeleteRecordsPartition:
    partition_index: Int32 = 0
    offset: Int64 = 0  # the new start; -1: the high watermark


@dataclass(slots=True)
class DeleteRecordsTopic:
    name: str = ""
    partitions: list[DeleteRecordsPartition] = array()


@dataclass(slots=True)
class DeleteRecordsRequest:
    VERSIONS = Versions(0, 2, flexible=2)

    topics: list[DeleteRecordsTopic] = array()
    timeout_ms: Int32 = 0


@dataclass(slots=True)
class DeleteRecordsPartitionResult:
    partition_index: Int32 = 0
    low_watermark: Int64 = 0  # the start afterwards
    error_code: Int16 = 0


@dataclass(slots=True)
class DeleteRecordsTopicResult:
    name: str = ""
    partitions: list[DeleteRecordsPartitionResult] = array()


@dataclass(slots=True)
class DeleteRecordsResponse:
    VERSIONS = Versions(0, 2, flexible=2)

    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = array()
