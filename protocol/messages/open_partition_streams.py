"""OpenPartitionStreams (private, key 501): a partition's leader takes its streams, making those that are
missing.

All roles asked for are opened in one commit, or none. Asked again by the same owner it gives the same answer.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int8, Int16, Int32, Int64, Uuid, Versions, array


@dataclass(slots=True)
class OpenPartitionStreamsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    node_id: Int32 = 0
    broker_epoch: Int64 = -1
    topic_id: Uuid = NO_UUID
    partition_index: Int32 = 0
    leader_epoch: Int32 = -1
    roles: list[Int8] = array()  # StreamRole of s3stream/ids.py


@dataclass(slots=True)
class OpenedPartitionStream:
    role: Int8 = 0
    stream_id: Int64 = 0
    epoch: Int64 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = 0  # of what is committed as objects


@dataclass(slots=True)
class OpenPartitionStreamsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    # STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION,
    # FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER; LEADER_NOT_AVAILABLE: another owner
    # has not closed them yet
    error_code: Int16 = 0
    error_message: str | None = None
    streams: list[OpenedPartitionStream] = array()  # in the order of the roles asked for
