"""Metadata (key 3): brokers, topics, partitions and leaders; topics may be made on the way.

Every client opens with it and repeats it after every NOT_LEADER. Not here: what creation is allowed to do,
and the caching of encoded topics (broker/handlers/metadata.py).
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_OPERATIONS, NO_UUID, Int16, Int32, Uuid, Versions, array, wire


@dataclass(slots=True)
class MetadataRequestTopic:
    topic_id: Uuid = wire(NO_UUID, since=10, ignorable=True)
    name: str | None = wire("", nullable_since=10)  # null: asked by id, which brokers serve from version 12


@dataclass(slots=True)
class MetadataRequest:
    """Version 0 asks for all topics with an empty list; later versions with null, and for none with an empty
    list."""

    VERSIONS = Versions(0, 13, flexible=9)

    topics: list[MetadataRequestTopic] | None = array(nullable_since=1)
    allow_auto_topic_creation: bool = wire(True, since=4)
    include_cluster_authorized_operations: bool = wire(False, since=8, until=10)
    include_topic_authorized_operations: bool = wire(False, since=8)


@dataclass(slots=True)
class MetadataResponseBroker:
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = wire(None, since=1, ignorable=True)


@dataclass(slots=True)
class MetadataResponsePartition:
    error_code: Int16 = 0  # LEADER_NOT_AVAILABLE, LISTENER_NOT_FOUND
    partition_index: Int32 = 0
    leader_id: Int32 = 0  # -1: no leader
    leader_epoch: Int32 = wire(-1, since=7, ignorable=True)
    replica_nodes: list[Int32] = array()
    isr_nodes: list[Int32] = array()
    offline_replicas: list[Int32] = array(since=5, ignorable=True)


@dataclass(slots=True)
class MetadataResponseTopic:
    error_code: Int16 = 0
    name: str | None = wire("", nullable_since=12)  # null for an id that nobody has
    topic_id: Uuid = wire(NO_UUID, since=10, ignorable=True)  # zero for a name that nobody has
    is_internal: bool = wire(False, since=1, ignorable=True)
    partitions: list[MetadataResponsePartition] = array()
    topic_authorized_operations: Int32 = wire(NO_OPERATIONS, since=8)


@dataclass(slots=True)
class MetadataResponse:
    VERSIONS = Versions(0, 13, flexible=9)

    throttle_time_ms: Int32 = wire(0, since=3, ignorable=True)
    brokers: list[MetadataResponseBroker] = array()
    cluster_id: str | None = wire(None, since=2, ignorable=True)
    controller_id: Int32 = wire(-1, since=1, ignorable=True)  # any broker: brokers forward to the controller
    topics: list[MetadataResponseTopic] = array()
    cluster_authorized_operations: Int32 = wire(NO_OPERATIONS, since=8, until=10)
    error_code: Int16 = wire(0, since=13, ignorable=True)  # REBOOTSTRAP_REQUIRED
