"""BeginQuorumEpoch (key 53): a new leader of the metadata quorum makes itself known to voters."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, UInt16, Uuid, Versions, array, wire


@dataclass(slots=True)
class BeginQuorumEpochRequestPartitionData:
    partition_index: Int32 = 0
    voter_directory_id: Uuid = wire(NO_UUID, since=1, ignorable=True)
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@dataclass(slots=True)
class BeginQuorumEpochRequestTopicData:
    topic_name: str = ""
    partitions: list[BeginQuorumEpochRequestPartitionData] = array()


@dataclass(slots=True)
class LeaderEndpoint:
    name: str = ""
    host: str = ""
    port: UInt16 = 0


@dataclass(slots=True)
class BeginQuorumEpochRequest:
    VERSIONS = Versions(0, 1, flexible=1)

    cluster_id: str | None = None
    voter_id: Int32 = wire(-1, since=1, ignorable=True)  # of the receiver; -1: not said
    topics: list[BeginQuorumEpochRequestTopicData] = array()
    leader_endpoints: list[LeaderEndpoint] = array(since=1, ignorable=True)


@dataclass(slots=True)
class BeginQuorumEpochResponsePartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0  # -1: unknown
    leader_epoch: Int32 = 0


@dataclass(slots=True)
class BeginQuorumEpochResponseTopicData:
    topic_name: str = ""
    partitions: list[BeginQuorumEpochResponsePartitionData] = array()


@dataclass(slots=True)
class NodeEndpoint:
    node_id: Int32 = 0
    host: str = ""
    port: UInt16 = 0


@dataclass(slots=True)
class BeginQuorumEpochResponse:
    VERSIONS = Versions(0, 1, flexible=1)

    error_code: Int16 = 0
    topics: list[BeginQuorumEpochResponseTopicData] = array()
    node_endpoints: list[NodeEndpoint] = array(since=1, tag=0)
