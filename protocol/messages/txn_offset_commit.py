"""TxnOffsetCommit (key 28): a group's positions as part of a transaction, to the group's coordinator."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions, array, wire


@dataclass(slots=True)
class TxnOffsetCommitRequestPartition:
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = wire(-1, since=2, ignorable=True)
    committed_metadata: str | None = ""


@dataclass(slots=True)
class TxnOffsetCommitRequestTopic:
    name: str = wire("", until=5, ignorable=True)  # a name up to version 5, an id after that
    topic_id: Uuid = wire(NO_UUID, since=6, ignorable=True)
    partitions: list[TxnOffsetCommitRequestPartition] = array()


@dataclass(slots=True)
class TxnOffsetCommitRequest:
    VERSIONS = Versions(0, 6, flexible=3)

    transactional_id: str = ""
    group_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id_or_member_epoch: Int32 = wire(-1, since=3)  # -1: no membership claimed
    member_id: str = wire("", since=3)
    group_instance_id: str | None = wire(None, since=3)
    topics: list[TxnOffsetCommitRequestTopic] = array()


@dataclass(slots=True)
class TxnOffsetCommitResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@dataclass(slots=True)
class TxnOffsetCommitResponseTopic:
    name: str = wire("", until=5, ignorable=True)
    topic_id: Uuid = wire(NO_UUID, since=6, ignorable=True)
    partitions: list[TxnOffsetCommitResponsePartition] = array()


@dataclass(slots=True)
class TxnOffsetCommitResponse:
    VERSIONS = Versions(0, 6, flexible=3)

    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = array()
