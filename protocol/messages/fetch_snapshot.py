"""FetchSnapshot (key 59): a snapshot of the metadata log, piece by piece."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import (
    INT32_MAX,
    NO_UUID,
    Int16,
    Int32,
    Int64,
    RecordParts,
    UInt16,
    Uuid,
    Versions,
    array,
    struct,
    wire,
)


@dataclass(slots=True)
class SnapshotId:
    end_offset: Int64 = 0
    epoch: Int32 = 0


@dataclass(slots=True)
class FetchSnapshotRequestPartitionSnapshot:
    partition: Int32 = 0
    current_leader_epoch: Int32 = 0  # -1: not checked
    snapshot_id: SnapshotId = struct(SnapshotId)
    position: Int64 = 0  # in bytes
    replica_directory_id: Uuid = wire(NO_UUID, since=1, tag=0, ignorable=True)


@dataclass(slots=True)
class FetchSnapshotRequestTopicSnapshot:
    name: str = ""
    partitions: list[FetchSnapshotRequestPartitionSnapshot] = array()


@dataclass(slots=True)
class FetchSnapshotRequest:
    VERSIONS = Versions(0, 1, flexible=0)

    cluster_id: str | None = wire(None, tag=0)
    replica_id: Int32 = -1
    max_bytes: Int32 = INT32_MAX
    topics: list[FetchSnapshotRequestTopicSnapshot] = array()


@dataclass(slots=True)
class LeaderIdAndEpoch:
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@dataclass(slots=True)
class FetchSnapshotResponsePartitionSnapshot:
    index: Int32 = 0
    error_code: Int16 = 0
    snapshot_id: SnapshotId = struct(SnapshotId)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, tag=0)
    size: Int64 = 0  # of the whole snapshot, in bytes
    position: Int64 = 0  # of the first byte below
    unaligned_records: RecordParts = b""  # may begin and end inside a batch


@dataclass(slots=True)
class FetchSnapshotResponseTopicSnapshot:
    name: str = ""
    partitions: list[FetchSnapshotResponsePartitionSnapshot] = array()


@dataclass(slots=True)
class NodeEndpoint:
    node_id: Int32 = 0
    host: str = ""
    port: UInt16 = 0


@dataclass(slots=True)
class FetchSnapshotResponse:
    VERSIONS = Versions(0, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[FetchSnapshotResponseTopicSnapshot] = array()
    node_endpoints: list[NodeEndpoint] = array(since=1, tag=0)
