"""AlterReplicaLogDirs (key 34): moves replicas between the log directories of a broker."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Versions, array


@dataclass(slots=True)
class AlterReplicaLogDirTopic:
    name: str = ""
    partitions: list[Int32] = array()


@dataclass(slots=True)
class AlterReplicaLogDir:
    path: str = ""
    topics: list[AlterReplicaLogDirTopic] = array()


@dataclass(slots=True)
class AlterReplicaLogDirsRequest:
    VERSIONS = Versions(1, 2, flexible=2)

    dirs: list[AlterReplicaLogDir] = array()


@dataclass(slots=True)
class AlterReplicaLogDirPartitionResult:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@dataclass(slots=True)
class AlterReplicaLogDirTopicResult:
    topic_name: str = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = array()


@dataclass(slots=True)
class AlterReplicaLogDirsResponse:
    VERSIONS = Versions(1, 2, flexible=2)

    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = array()
