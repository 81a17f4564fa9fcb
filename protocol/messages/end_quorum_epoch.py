"""EndQuorumEpoch (key 54): a leader of the metadata quorum resigns, and says who should be first to ask for
votes."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, UInt16, Uuid, Versions, array


@dataclass(slots=True)
class ReplicaInfo:
    candidate_id: Int32 = 0
    candidate_directory_id: Uuid = NO_UUID


@dataclass(slots=True)
class EndQuorumEpochRequestPartitionData:
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    preferred_successors: list[Int32] = array(
        until=0, ignorable=True
    )  # by id; from version 1 on preferred_candidates
    preferred_candidates: list[ReplicaInfo] = array(since=1, ignorable=True)


@dataclass(slots=True)
class EndQuorumEpochRequestTopicData:
    topic_name: str = ""
    partitions: list[EndQuorumEpochRequestPartitionData] = array()


@dataclass(slots=True)
class LeaderEndpoint:
    name: str = ""
    host: str = ""
    port: UInt16 = 0


@dataclass(slots=True)
class EndQuorumEpochRequest:
    VERSIONS = Versions(0, 1, flexible=1)

    cluster_id: str | None = None
    topics: list[EndQuorumEpochRequestTopicData] = array()
    leader_endpoints: list[LeaderEndpoint] = array(since=1, ignorable=True)


@dataclass(slots=True)
class EndQuorumEpochResponsePartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@dataclass(slots=True)
class EndQuorumEpochResponseTopicData:
    topic_name: str = ""
    partitions: list[EndQuorumEpochResponsePartitionData] = array()


@dataclass(slots=True)
class NodeEndpoint:
    node_id: Int32 = 0
    host: str = ""
    port: UInt16 = 0


@dataclass(slots=True)
class EndQuorumEpochResponse:
    VERSIONS = Versions(0, 1, flexible=1)

    error_code: Int16 = 0
    topics: list[EndQuorumEpochResponseTopicData] = array()
    node_endpoints: list[NodeEndpoint] = array(since=1, tag=0)
