"""InitProducerId (key 22): a producer id and epoch; for a transactional id it also fences its former holders.

Version 6 (two-phase commit, KIP-939) is unstable in Kafka 4.4.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, wire


@dataclass(slots=True)
class InitProducerIdRequest:
    VERSIONS = Versions(0, 6, flexible=2)

    transactional_id: str | None = ""  # null: idempotence alone
    transaction_timeout_ms: Int32 = 0
    producer_id: Int64 = wire(-1, since=3)  # with the epoch below: what the producer has now, to be raised
    producer_epoch: Int16 = wire(-1, since=3)
    enable2_pc: bool = wire(False, since=6)
    keep_prepared_txn: bool = wire(False, since=6)


@dataclass(slots=True)
class InitProducerIdResponse:
    VERSIONS = Versions(0, 6, flexible=2)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Int64 = wire(-1, since=6)  # of a transaction that was kept; -1: none
    ongoing_txn_producer_epoch: Int16 = wire(-1, since=6)
