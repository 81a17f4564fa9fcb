"""DescribeTransactions (key 65): state of transactions by their ids."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array


@dataclass(slots=True)
class DescribeTransactionsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    transactional_ids: list[str] = array()


@dataclass(slots=True)
class TopicData:
    topic: str = ""
    partitions: list[Int32] = array()


@dataclass(slots=True)
class TransactionState:
    error_code: Int16 = 0
    transactional_id: str = ""
    # Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, ...
    transaction_state: str = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0  # -1: none is open
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = array()


@dataclass(slots=True)
class DescribeTransactionsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = array()
