"""Fetch (key 1): batches from partitions, for consumers, followers of a partition, and replicas of the
metadata log.

Hot: fetch_hot.py decodes and encodes it by hand, and is tested against this declaration. Not here: sessions
(broker/requests/fetch_sessions.py). A response may give records in several buffers; they reach the socket
uncopied.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import (
    INT32_MAX,
    INT64_MAX,
    NO_UUID,
    Int8,
    Int16,
    Int32,
    Int64,
    RecordParts,
    Uuid,
    Versions,
    array,
    wire,
)


@dataclass(frozen=True, slots=True)
class ReplicaState:
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


NOT_A_REPLICA = ReplicaState()


@dataclass(slots=True)
class FetchPartition:
    partition: Int32 = 0
    current_leader_epoch: Int32 = wire(-1, since=9, ignorable=True)  # -1: not checked
    fetch_offset: Int64 = 0
    last_fetched_epoch: Int32 = wire(-1, since=12)  # asks the leader to look for divergence; -1: does not
    log_start_offset: Int64 = wire(-1, since=5, ignorable=True)  # of a follower
    partition_max_bytes: Int32 = 0
    replica_directory_id: Uuid = wire(NO_UUID, since=17, tag=0, ignorable=True)
    # of a follower; the greatest value: it cannot tell
    high_watermark: Int64 = wire(INT64_MAX, since=18, tag=1, ignorable=True)


@dataclass(slots=True)
class FetchTopic:
    topic: str = wire("", until=12, ignorable=True)
    topic_id: Uuid = wire(NO_UUID, since=13, ignorable=True)
    partitions: list[FetchPartition] = array()


@dataclass(slots=True)
class ForgottenTopic:
    topic: str = wire("", until=12, ignorable=True)
    topic_id: Uuid = wire(NO_UUID, since=13, ignorable=True)
    partitions: list[Int32] = array()  # leave the session


@dataclass(slots=True)
class FetchRequest:
    """With a session, only what changed since the last request of it; session epoch 0 opens one, -1 closes
    it."""

    VERSIONS = Versions(4, 18, flexible=12)

    # of replicas of the metadata log, checked before they are registered
    cluster_id: str | None = wire(None, since=12, tag=0, ignorable=True)
    replica_id: Int32 = wire(-1, until=14)  # -1: a consumer
    replica_state: ReplicaState = wire(NOT_A_REPLICA, since=15, tag=1)  # says the same from version 15 on
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = INT32_MAX  # the first batch is sent whole even when it is larger
    isolation_level: Int8 = 0  # 0: read uncommitted, 1: read committed
    session_id: Int32 = wire(0, since=7, ignorable=True)
    session_epoch: Int32 = wire(-1, since=7, ignorable=True)
    topics: list[FetchTopic] = array()
    forgotten_topics_data: list[ForgottenTopic] = array(since=7)
    rack_id: str = wire("", since=11, ignorable=True)


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    epoch: Int32 = -1
    end_offset: Int64 = -1


NO_DIVERGENCE = EpochEndOffset()


@dataclass(frozen=True, slots=True)
class LeaderIdAndEpoch:
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


NO_LEADER = LeaderIdAndEpoch()


@dataclass(frozen=True, slots=True)
class SnapshotId:
    end_offset: Int64 = -1
    epoch: Int32 = -1


NO_SNAPSHOT = SnapshotId()


@dataclass(slots=True)
class AbortedTransaction:
    producer_id: Int64 = 0
    first_offset: Int64 = 0


@dataclass(slots=True)
class PartitionData:
    partition_index: Int32 = 0
    # OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, ...
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1  # below it every transaction is decided
    log_start_offset: Int64 = wire(-1, since=5, ignorable=True)
    # the follower's log leaves the leader's: truncate to this and ask again
    diverging_epoch: EpochEndOffset = wire(NO_DIVERGENCE, since=12, tag=0)
    current_leader: LeaderIdAndEpoch = wire(NO_LEADER, since=12, tag=1)
    # the follower is below the log's start: fetch this snapshot
    snapshot_id: SnapshotId = wire(NO_SNAPSHOT, since=12, tag=2)
    # of the offsets in records; null for read uncommitted
    aborted_transactions: list[AbortedTransaction] | None = array()
    preferred_read_replica: Int32 = wire(-1, since=11)  # -1: go on reading here
    records: RecordParts | None = None


@dataclass(slots=True)
class FetchableTopicResponse:
    topic: str = wire("", until=12, ignorable=True)  # a name up to version 12, an id after that
    topic_id: Uuid = wire(NO_UUID, since=13, ignorable=True)
    partitions: list[PartitionData] = array()


@dataclass(slots=True)
class NodeEndpoint:
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None


@dataclass(slots=True)
class FetchResponse:
    """In a session, only partitions that have records, an error or a change of state."""

    VERSIONS = Versions(4, 18, flexible=12)

    throttle_time_ms: Int32 = 0
    # of the session: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH
    error_code: Int16 = wire(0, since=7, ignorable=True)
    session_id: Int32 = wire(0, since=7)  # 0: none
    responses: list[FetchableTopicResponse] = array()
    # of leaders named under NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH
    node_endpoints: list[NodeEndpoint] = array(since=16, tag=0)
