"""AssignReplicasToDirs (key 73): a broker tells the controller in which log directory its replicas are
(KIP-858)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions, array


@dataclass(slots=True)
class AssignReplicasToDirsRequestPartitionData:
    partition_index: Int32 = 0


@dataclass(slots=True)
class AssignReplicasToDirsRequestTopicData:
    topic_id: Uuid = NO_UUID
    partitions: list[AssignReplicasToDirsRequestPartitionData] = array()


@dataclass(slots=True)
class AssignReplicasToDirsRequestDirectoryData:
    id: Uuid = NO_UUID
    topics: list[AssignReplicasToDirsRequestTopicData] = array()


@dataclass(slots=True)
class AssignReplicasToDirsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    directories: list[AssignReplicasToDirsRequestDirectoryData] = array()


@dataclass(slots=True)
class AssignReplicasToDirsResponsePartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@dataclass(slots=True)
class AssignReplicasToDirsResponseTopicData:
    topic_id: Uuid = NO_UUID
    partitions: list[AssignReplicasToDirsResponsePartitionData] = array()


@dataclass(slots=True)
class AssignReplicasToDirsResponseDirectoryData:
    id: Uuid = NO_UUID
    topics: list[AssignReplicasToDirsResponseTopicData] = array()


@dataclass(slots=True)
class AssignReplicasToDirsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    directories: list[AssignReplicasToDirsResponseDirectoryData] = array()
