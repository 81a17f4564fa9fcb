"""Produce (key 0): batches for partitions, in one request for many topics.

Hot: produce_hot.py decodes and encodes it by hand, and is tested against this declaration. Not here: what a
batch is (protocol/batches.py). Records are a view of the frame and live as long as somebody holds them.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Records, Uuid, Versions, array, wire


@dataclass(slots=True)
class PartitionProduceData:
    index: Int32 = 0
    records: Records | None = None  # exactly one batch of magic 2


@dataclass(slots=True)
class TopicProduceData:
    name: str = wire("", until=12, ignorable=True)  # a name up to version 12, an id after that
    topic_id: Uuid = wire(NO_UUID, since=13, ignorable=True)
    partition_data: list[PartitionProduceData] = array()


@dataclass(slots=True)
class ProduceRequest:
    """With acks=0 there is no response, not even on error."""

    VERSIONS = Versions(3, 13, flexible=9)

    transactional_id: str | None = None  # null: not transactional
    acks: Int16 = 0  # -1, 0 or 1; 1 is as durable as -1 here
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = array()


@dataclass(slots=True)
class BatchIndexAndErrorMessage:
    batch_index: Int32 = 0
    batch_index_error_message: str | None = None


@dataclass(frozen=True, slots=True)
class LeaderIdAndEpoch:
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


NO_LEADER = LeaderIdAndEpoch()


@dataclass(slots=True)
class PartitionProduceResponse:
    index: Int32 = 0
    error_code: Int16 = 0  # NOT_LEADER_OR_FOLLOWER, INVALID_RECORD, MESSAGE_TOO_LARGE, ...
    base_offset: Int64 = 0
    log_append_time_ms: Int64 = -1  # -1 unless message.timestamp.type is LogAppendTime
    log_start_offset: Int64 = wire(-1, since=5, ignorable=True)
    # which records of the batch are to blame
    record_errors: list[BatchIndexAndErrorMessage] = array(since=8, ignorable=True)
    error_message: str | None = wire(None, since=8, ignorable=True)
    # told with NOT_LEADER_OR_FOLLOWER, so that no metadata is asked for
    current_leader: LeaderIdAndEpoch = wire(NO_LEADER, since=10, tag=0)


@dataclass(slots=True)
class TopicProduceResponse:
    name: str = wire("", until=12, ignorable=True)
    topic_id: Uuid = wire(NO_UUID, since=13, ignorable=True)
    partition_responses: list[PartitionProduceResponse] = array()


@dataclass(slots=True)
class NodeEndpoint:
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None


@dataclass(slots=True)
class ProduceResponse:
    """Partitions answer in the order they were asked in, each with its own error."""

    VERSIONS = Versions(3, 13, flexible=9)

    responses: list[TopicProduceResponse] = array()
    throttle_time_ms: Int32 = 0
    node_endpoints: list[NodeEndpoint] = array(since=10, tag=0)  # of the leaders named above
