"""OffsetFetch (key 9): a group's positions read back; from version 8 on, those of several groups at once.

Up to version 7 the outer fields serve one group, from 8 on `groups` does. Topics have ids from version 10 on.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, Uuid, Versions, array, wire


@dataclass(slots=True)
class OffsetFetchRequestTopic:
    name: str = ""
    partition_indexes: list[Int32] = array()


@dataclass(slots=True)
class OffsetFetchRequestTopics:
    name: str = wire("", until=9, ignorable=True)
    topic_id: Uuid = wire(NO_UUID, since=10, ignorable=True)
    partition_indexes: list[Int32] = array()


@dataclass(slots=True)
class OffsetFetchRequestGroup:
    group_id: str = ""
    member_id: str | None = wire(None, since=9, ignorable=True)
    member_epoch: Int32 = wire(-1, since=9, ignorable=True)  # -1: no membership claimed
    topics: list[OffsetFetchRequestTopics] | None = array()  # null: all that the group has committed


@dataclass(slots=True)
class OffsetFetchRequest:
    VERSIONS = Versions(1, 10, flexible=6)

    group_id: str = wire("", until=7)
    # null: all that the group has committed; versions 0 and 1 cannot ask so
    topics: list[OffsetFetchRequestTopic] | None = array(until=7, nullable_since=2)
    groups: list[OffsetFetchRequestGroup] = array(since=8)
    require_stable: bool = wire(
        False, since=7
    )  # answer UNSTABLE_OFFSET_COMMIT where a transaction holds an offset


@dataclass(slots=True)
class OffsetFetchResponsePartition:
    partition_index: Int32 = 0
    committed_offset: Int64 = 0  # -1: none
    committed_leader_epoch: Int32 = wire(-1, since=5, ignorable=True)
    metadata: str | None = ""
    error_code: Int16 = 0


@dataclass(slots=True)
class OffsetFetchResponseTopic:
    name: str = ""
    partitions: list[OffsetFetchResponsePartition] = array()


@dataclass(slots=True)
class OffsetFetchResponsePartitions:
    partition_index: Int32 = 0
    committed_offset: Int64 = 0  # -1: none
    committed_leader_epoch: Int32 = -1
    metadata: str | None = ""
    error_code: Int16 = 0


@dataclass(slots=True)
class OffsetFetchResponseTopics:
    name: str = wire("", until=9, ignorable=True)
    topic_id: Uuid = wire(NO_UUID, since=10, ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = array()


@dataclass(slots=True)
class OffsetFetchResponseGroup:
    group_id: str = ""
    topics: list[OffsetFetchResponseTopics] = array()
    error_code: Int16 = 0


@dataclass(slots=True)
class OffsetFetchResponse:
    VERSIONS = Versions(1, 10, flexible=6)

    throttle_time_ms: Int32 = wire(0, since=3, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = array(until=7)
    error_code: Int16 = wire(0, since=2, until=7, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = array(since=8)
