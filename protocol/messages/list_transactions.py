"""ListTransactions (key 66): transactions that this broker coordinates."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array, wire


@dataclass(slots=True)
class ListTransactionsRequest:
    VERSIONS = Versions(0, 2, flexible=0)

    state_filters: list[str] = array()  # empty: any
    producer_id_filters: list[Int64] = array()  # empty: any
    duration_filter: Int64 = wire(-1, since=1)  # ms that it has been open at least; negative: any
    transactional_id_pattern: str | None = wire(None, since=2)  # a regular expression; null or empty: any


@dataclass(slots=True)
class TransactionState:
    transactional_id: str = ""
    producer_id: Int64 = 0
    transaction_state: str = ""


@dataclass(slots=True)
class ListTransactionsResponse:
    VERSIONS = Versions(0, 2, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[str] = array()
    transaction_states: list[TransactionState] = array()
