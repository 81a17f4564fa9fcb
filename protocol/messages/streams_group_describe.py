"""StreamsGroupDescribe (key 89): state, members and topology of streams groups (KIP-1071)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import (
    NO_OPERATIONS,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt16,
    Versions,
    array,
    struct,
    wire,
)


@dataclass(slots=True)
class StreamsGroupDescribeRequest:
    VERSIONS = Versions(0, 1, flexible=0)

    group_ids: list[str] = array()
    include_authorized_operations: bool = False
    include_topology_description: bool = wire(False, since=1)


@dataclass(slots=True)
class KeyValue:
    key: str = ""
    value: str = ""


@dataclass(slots=True)
class TopicInfo:
    name: str = ""
    partitions: Int32 = 0  # 0: not fixed
    replication_factor: Int16 = 0
    topic_configs: list[KeyValue] = array()


@dataclass(slots=True)
class Subtopology:
    subtopology_id: str = ""
    source_topics: list[str] = array()
    repartition_sink_topics: list[str] = array()
    state_changelog_topics: list[TopicInfo] = array()
    repartition_source_topics: list[TopicInfo] = array()


@dataclass(slots=True)
class Topology:
    epoch: Int32 = 0
    subtopologies: list[Subtopology] | None = None


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
class TaskIds:
    subtopology_id: str = ""
    partitions: list[Int32] = array()


@dataclass(slots=True)
class Assignment:
    active_tasks: list[TaskIds] = array()
    standby_tasks: list[TaskIds] = array()
    warmup_tasks: list[TaskIds] = array()


@dataclass(slots=True)
class Member:
    member_id: str = ""
    member_epoch: Int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topology_epoch: Int32 = 0
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = array()
    task_offsets: list[TaskOffset] = array()
    task_end_offsets: list[TaskOffset] = array()
    assignment: Assignment = struct(Assignment)
    target_assignment: Assignment = struct(Assignment)
    is_classic: bool = False


@dataclass(slots=True)
class TopologyDescriptionNode:
    name: str = ""
    node_type: Int8 = 0  # 1 source, 2 processor, 3 sink
    source_topics: list[str] = array()
    sink_topic: str | None = None
    stores: list[str] = array()
    successors: list[str] = array()


@dataclass(slots=True)
class TopologyDescriptionSubtopology:
    subtopology_id: str = ""
    nodes: list[TopologyDescriptionNode] = array()


@dataclass(slots=True)
class TopologyDescriptionGlobalStore:
    source: TopologyDescriptionNode = struct(TopologyDescriptionNode)
    processor: TopologyDescriptionNode = struct(TopologyDescriptionNode)


@dataclass(slots=True)
class TopologyDescription:
    subtopologies: list[TopologyDescriptionSubtopology] = array()
    global_stores: list[TopologyDescriptionGlobalStore] = array()


@dataclass(slots=True)
class DescribedGroup:
    error_code: Int16 = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    topology: Topology | None = None  # null with an error
    members: list[Member] = array()
    authorized_operations: Int32 = NO_OPERATIONS
    topology_description: TopologyDescription | None = wire(None, since=1)  # only with status 3
    topology_description_status: Int8 = wire(0, since=1)  # 0 not asked for, 3 available
    assignor_name: str | None = wire(None, since=1, ignorable=True)


@dataclass(slots=True)
class StreamsGroupDescribeResponse:
    VERSIONS = Versions(0, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = array()
