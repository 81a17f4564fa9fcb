"""ShareFetch (key 78): acquires records for a share group, and settles earlier ones on the way (KIP-932)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import (
    INT32_MAX,
    NO_UUID,
    Int8,
    Int16,
    Int32,
    Int64,
    RecordParts,
    Uuid,
    Versions,
    array,
    struct,
    wire,
)


@dataclass(slots=True)
class AcknowledgementBatch:
    first_offset: Int64 = 0
    last_offset: Int64 = 0  # inclusive
    # 0 gap, 1 accept, 2 release, 3 reject, 4 renew; one for all, or one an offset
    acknowledge_types: list[Int8] = array()


@dataclass(slots=True)
class FetchPartition:
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = array()


@dataclass(slots=True)
class FetchTopic:
    topic_id: Uuid = NO_UUID
    partitions: list[FetchPartition] = array()


@dataclass(slots=True)
class ForgottenTopic:
    topic_id: Uuid = NO_UUID
    partitions: list[Int32] = array()


@dataclass(slots=True)
class ShareFetchRequest:
    VERSIONS = Versions(1, 2, flexible=0)

    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: Int32 = 0  # 0 opens a session, -1 closes it
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = INT32_MAX
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Int8 = wire(
        0, since=2, ignorable=True
    )  # 0 whole batches, 1 never more than max_records
    is_renew_ack: bool = wire(False, since=2)  # some of the acknowledgements below prolong the lock
    topics: list[FetchTopic] = array()
    forgotten_topics_data: list[ForgottenTopic] = array()


@dataclass(slots=True)
class LeaderIdAndEpoch:
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@dataclass(slots=True)
class AcquiredRecords:
    first_offset: Int64 = 0
    last_offset: Int64 = 0  # inclusive
    delivery_count: Int16 = 0


@dataclass(slots=True)
class PartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: str | None = None
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch)
    records: RecordParts = b""
    acquired_records: list[AcquiredRecords] = array()


@dataclass(slots=True)
class ShareFetchableTopicResponse:
    topic_id: Uuid = NO_UUID
    partitions: list[PartitionData] = array()


@dataclass(slots=True)
class NodeEndpoint:
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None


@dataclass(slots=True)
class ShareFetchResponse:
    VERSIONS = Versions(1, 2, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: Int32 = 0  # after this what was acquired is anyone's again
    responses: list[ShareFetchableTopicResponse] = array()
    node_endpoints: list[NodeEndpoint] = array()
