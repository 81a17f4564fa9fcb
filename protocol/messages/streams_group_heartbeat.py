"""StreamsGroupHeartbeat (key 88): the one request of the streams group protocol (KIP-1071): topology and
tasks up, assignment down.

A null means unchanged since the last one, in both directions.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Int64, UInt16, Versions, array, struct, wire


@dataclass(slots=True)
class KeyValue:
    key: str = ""
    value: str = ""


@dataclass(slots=True)
class TopicInfo:
    name: str = ""
    partitions: Int32 = 0  # 0: not fixed; always so for changelogs
    replication_factor: Int16 = 0  # 0: as the broker is set
    topic_configs: list[KeyValue] = array()


@dataclass(slots=True)
class CopartitionGroup:
    source_topics: list[Int16] = array()  # positions in the arrays of the subtopology, here and below
    source_topic_regex: list[Int16] = array()
    repartition_source_topics: list[Int16] = array()


@dataclass(slots=True)
class Subtopology:
    subtopology_id: str = ""
    source_topics: list[str] = array()
    source_topic_regex: list[str] = array()
    state_changelog_topics: list[TopicInfo] = array()
    repartition_sink_topics: list[str] = array()
    repartition_source_topics: list[TopicInfo] = array()
    copartition_groups: list[CopartitionGroup] = array()


@dataclass(slots=True)
class Topology:
    epoch: Int32 = 0
    subtopologies: list[Subtopology] = array()


@dataclass(slots=True)
class TaskIds:
    subtopology_id: str = ""
    partitions: list[Int32] = array()


@dataclass(slots=True)
class Endpoint:
    host: str = ""
    port: UInt16 = 0


@dataclass(slots=True)
class TaskOffset:
    subtopology_id: str = ""
    partition: Int32 = 0
    offset: Int64 = 0


@dataclass(slots=True)
class StreamsGroupHeartbeatRequest:
    VERSIONS = Versions(0, 1, flexible=0)

    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0  # 0 joins, -1 leaves, -2 a static member leaves for a while
    endpoint_information_epoch: Int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1  # -1: unchanged
    topology: Topology | None = None  # with the first heartbeat, and when it changes
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    process_id: str | None = None  # one for all members of a process
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] | None = None
    task_offsets: list[TaskOffset] | None = None
    task_end_offsets: list[TaskOffset] | None = None
    shutdown_application: bool = False


@dataclass(slots=True)
class Status:
    status_code: Int8 = 0
    status_detail: str = ""


@dataclass(slots=True)
class TopicPartition:
    topic: str = ""
    partitions: list[Int32] = array()


@dataclass(slots=True)
class EndpointToPartitions:
    user_endpoint: Endpoint = struct(Endpoint)
    active_partitions: list[TopicPartition] = array()
    standby_partitions: list[TopicPartition] = array()  # of warm-up tasks too


@dataclass(slots=True)
class StreamsGroupHeartbeatResponse:
    VERSIONS = Versions(0, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str = ""
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    acceptable_recovery_lag_legacy: Int32 = wire(0, until=0)  # 64 bits from version 1 on
    task_offset_interval_ms: Int32 = 0
    # offsets that a task may be behind and still become active
    acceptable_recovery_lag: Int64 = wire(-1, since=1, ignorable=True)
    status: list[Status] | None = array()
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    topology_description_required: bool = wire(False, since=1)
    endpoint_information_epoch: Int32 = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = None
