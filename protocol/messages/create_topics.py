"""CreateTopics (key 19): makes topics."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int8, Int16, Int32, Uuid, Versions, array, wire


@dataclass(slots=True)
class CreatableReplicaAssignment:
    partition_index: Int32 = 0
    broker_ids: list[Int32] = array()


@dataclass(slots=True)
class CreatableTopicConfig:
    name: str = ""
    value: str | None = ""


@dataclass(slots=True)
class CreatableTopic:
    name: str = ""
    num_partitions: Int32 = 0  # -1: as the broker is set, or as assigned below
    replication_factor: Int16 = 0  # -1: as the broker is set, or as assigned below
    assignments: list[CreatableReplicaAssignment] = array()
    configs: list[CreatableTopicConfig] = array()


@dataclass(slots=True)
class CreateTopicsRequest:
    VERSIONS = Versions(2, 7, flexible=5)

    topics: list[CreatableTopic] = array()
    timeout_ms: Int32 = 60000
    validate_only: bool = False


@dataclass(slots=True)
class CreatableTopicConfigs:
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: Int8 = -1  # as in DescribeConfigs
    is_sensitive: bool = False


@dataclass(slots=True)
class CreatableTopicResult:
    name: str = ""
    topic_id: Uuid = wire(NO_UUID, since=7, ignorable=True)
    # TOPIC_ALREADY_EXISTS, INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_CONFIG, ...
    error_code: Int16 = 0
    error_message: str | None = ""
    topic_config_error_code: Int16 = wire(
        0, since=5, tag=0, ignorable=True
    )  # why configs is null, where it is
    num_partitions: Int32 = wire(-1, since=5, ignorable=True)
    replication_factor: Int16 = wire(-1, since=5, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = array(
        since=5, ignorable=True
    )  # null: the client may not see them


@dataclass(slots=True)
class CreateTopicsResponse:
    VERSIONS = Versions(2, 7, flexible=5)

    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult] = array()
