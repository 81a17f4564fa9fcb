"""WriteTxnMarkers (key 27): commit and abort markers, from the transaction coordinator to the leaders of
partitions, or from an admin who aborts."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Int64, Versions, array, wire


@dataclass(slots=True)
class WritableTxnMarkerTopic:
    name: str = ""
    partition_indexes: list[Int32] = array()


@dataclass(slots=True)
class WritableTxnMarker:
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: bool = False  # True: commit
    topics: list[WritableTxnMarkerTopic] = array()
    coordinator_epoch: Int32 = 0
    # 2: the epoch in the marker is above that of the records (KIP-1228)
    transaction_version: Int8 = wire(0, since=2, ignorable=True)


@dataclass(slots=True)
class WriteTxnMarkersRequest:
    VERSIONS = Versions(1, 2, flexible=1)

    markers: list[WritableTxnMarker] = array()


@dataclass(slots=True)
class WritableTxnMarkerPartitionResult:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@dataclass(slots=True)
class WritableTxnMarkerTopicResult:
    name: str = ""
    partitions: list[WritableTxnMarkerPartitionResult] = array()


@dataclass(slots=True)
class WritableTxnMarkerResult:
    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = array()


@dataclass(slots=True)
class WriteTxnMarkersResponse:
    VERSIONS = Versions(1, 2, flexible=1)

    markers: list[WritableTxnMarkerResult] = array()
