"""DescribeProducers (key 61): the producers that partitions remember."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array


@dataclass(slots=True)
class TopicRequest:
    name: str = ""
    partition_indexes: list[Int32] = array()


@dataclass(slots=True)
class DescribeProducersRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    topics: list[TopicRequest] = array()


@dataclass(slots=True)
class ProducerState:
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1  # -1: no transaction is open


@dataclass(slots=True)
class PartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    active_producers: list[ProducerState] = array()


@dataclass(slots=True)
class TopicResponse:
    name: str = ""
    partitions: list[PartitionResponse] = array()


@dataclass(slots=True)
class DescribeProducersResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = array()
