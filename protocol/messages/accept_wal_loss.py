"""AcceptWalLoss (private, key 523): an operator gave up what only a node's write-ahead log held.

The leader epoch of every partition that the node had open, or owed records of, rises, so that consumers which
check epochs (KIP-320) notice that offsets they were told may now mean other records. Answered once that is
durable, with what was given up. Not idempotent: each call raises the epochs.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions, array, wire


@dataclass(slots=True)
class AcceptWalLossRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = 0
    broker_epoch: Int64 = -1


@dataclass(slots=True)
class LostPartition:
    topic_name: str = ""
    topic_id: Uuid = NO_UUID
    partition_index: Int32 = 0
    end_offset: Int64 = 0  # records from here on were in the log alone
    leader_epoch: Int32 = 0  # the new one
    # exclusive, where the partition goes on behind what was lost, as another owner wrote there; -1: nowhere
    lost_end: Int64 = wire(-1, tag=0)


@dataclass(slots=True)
class AcceptWalLossResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    error_code: Int16 = 0  # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED
    error_message: str | None = None
    partitions: list[LostPartition] = array()
