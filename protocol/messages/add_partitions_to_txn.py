"""AddPartitionsToTxn (key 24): tells the transaction coordinator of partitions before they are written to.

Up to version 3 from clients, one transaction; from version 4 on from brokers, in batches (KIP-890).
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array, wire


@dataclass(slots=True)
class AddPartitionsToTxnTopic:
    name: str = ""
    partitions: list[Int32] = array()


@dataclass(slots=True)
class AddPartitionsToTxnTransaction:
    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    verify_only: bool = False  # ask whether they are in, and add nothing
    topics: list[AddPartitionsToTxnTopic] = array()


@dataclass(slots=True)
class AddPartitionsToTxnRequest:
    VERSIONS = Versions(0, 5, flexible=3)

    transactions: list[AddPartitionsToTxnTransaction] = array(since=4)
    v3_and_below_transactional_id: str = wire("", until=3)
    v3_and_below_producer_id: Int64 = wire(0, until=3)
    v3_and_below_producer_epoch: Int16 = wire(0, until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(until=3)


@dataclass(slots=True)
class AddPartitionsToTxnPartitionResult:
    partition_index: Int32 = 0
    partition_error_code: Int16 = 0  # OPERATION_NOT_ATTEMPTED when another partition failed


@dataclass(slots=True)
class AddPartitionsToTxnTopicResult:
    name: str = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array()


@dataclass(slots=True)
class AddPartitionsToTxnResult:
    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = array()


@dataclass(slots=True)
class AddPartitionsToTxnResponse:
    VERSIONS = Versions(0, 5, flexible=3)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = wire(0, since=4, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(until=3)
