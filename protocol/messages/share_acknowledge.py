"""ShareAcknowledge (key 79): settles records that were acquired for a share group (KIP-932)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int8, Int16, Int32, Int64, Uuid, Versions, array, struct, wire


@dataclass(slots=True)
class AcknowledgementBatch:
    first_offset: Int64 = 0
    last_offset: Int64 = 0  # inclusive
    # 0 gap, 1 accept, 2 release, 3 reject, 4 renew; one for all, or one an offset
    acknowledge_types: list[Int8] = array()


@dataclass(slots=True)
class AcknowledgePartition:
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = array()


@dataclass(slots=True)
class AcknowledgeTopic:
    topic_id: Uuid = NO_UUID
    partitions: list[AcknowledgePartition] = array()


@dataclass(slots=True)
class ShareAcknowledgeRequest:
    VERSIONS = Versions(1, 2, flexible=0)

    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: Int32 = 0  # -1 closes the session
    is_renew_ack: bool = wire(False, since=2)
    topics: list[AcknowledgeTopic] = array()


@dataclass(slots=True)
class LeaderIdAndEpoch:
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@dataclass(slots=True)
class PartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch)


@dataclass(slots=True)
class ShareAcknowledgeTopicResponse:
    topic_id: Uuid = NO_UUID
    partitions: list[PartitionData] = array()


@dataclass(slots=True)
class NodeEndpoint:
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None


@dataclass(slots=True)
class ShareAcknowledgeResponse:
    VERSIONS = Versions(1, 2, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: Int32 = wire(0, since=2, ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = array()
    node_endpoints: list[NodeEndpoint] = array()
