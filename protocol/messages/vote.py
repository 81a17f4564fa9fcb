"""Vote (key 52): a candidate asks a voter of the metadata quorum, with pre-vote from version 2 on
(KIP-996)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, UInt16, Uuid, Versions, array, wire


@dataclass(slots=True)
class VoteRequestPartitionData:
    partition_index: Int32 = 0
    replica_epoch: Int32 = 0  # of the sender
    replica_id: Int32 = 0
    replica_directory_id: Uuid = wire(NO_UUID, since=1, ignorable=True)
    voter_directory_id: Uuid = wire(NO_UUID, since=1, ignorable=True)
    last_offset_epoch: Int32 = 0
    last_offset: Int64 = 0  # the end of the sender's log, exclusive
    pre_vote: bool = wire(False, since=2)  # would you vote for me; nothing is persisted


@dataclass(slots=True)
class VoteRequestTopicData:
    topic_name: str = ""
    partitions: list[VoteRequestPartitionData] = array()


@dataclass(slots=True)
class VoteRequest:
    VERSIONS = Versions(0, 2, flexible=0)

    cluster_id: str | None = None
    voter_id: Int32 = wire(-1, since=1, ignorable=True)  # of the receiver; -1: not said
    topics: list[VoteRequestTopicData] = array()


@dataclass(slots=True)
class VoteResponsePartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0  # -1: unknown
    leader_epoch: Int32 = 0
    vote_granted: bool = False


@dataclass(slots=True)
class VoteResponseTopicData:
    topic_name: str = ""
    partitions: list[VoteResponsePartitionData] = array()


@dataclass(slots=True)
class NodeEndpoint:
    node_id: Int32 = 0
    host: str = ""
    port: UInt16 = 0


@dataclass(slots=True)
class VoteResponse:
    VERSIONS = Versions(0, 2, flexible=0)

    error_code: Int16 = 0
    topics: list[VoteResponseTopicData] = array()
    node_endpoints: list[NodeEndpoint] = array(since=1, tag=0)
