"""OffsetDelete (key 47): forgets committed offsets of topics that the group does not read any more.

It never became flexible.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Versions, array


@dataclass(slots=True)
class OffsetDeleteRequestPartition:
    partition_index: Int32 = 0


@dataclass(slots=True)
class OffsetDeleteRequestTopic:
    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = array()


@dataclass(slots=True)
class OffsetDeleteRequest:
    VERSIONS = Versions(0, 0)

    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = array()


@dataclass(slots=True)
class OffsetDeleteResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0  # GROUP_SUBSCRIBED_TO_TOPIC


@dataclass(slots=True)
class OffsetDeleteResponseTopic:
    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = array()


@dataclass(slots=True)
class OffsetDeleteResponse:
    VERSIONS = Versions(0, 0)

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = array()
