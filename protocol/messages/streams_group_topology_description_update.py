"""StreamsGroupTopologyDescriptionUpdate (key 93): a member uploads the full description of its topology, for
those who look on (KIP-1331)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Versions, array, struct


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
class StreamsGroupTopologyDescriptionUpdateRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    group_id: str = ""
    member_id: str = ""
    topology_epoch: Int32 = 0
    topology_description: TopologyDescription = struct(TopologyDescription)


@dataclass(slots=True)
class StreamsGroupTopologyDescriptionUpdateResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
