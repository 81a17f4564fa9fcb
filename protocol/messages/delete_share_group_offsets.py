"""DeleteShareGroupOffsets (key 92): drops topics from a share group that has no members."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Uuid, Versions, array


@dataclass(slots=True)
class DeleteShareGroupOffsetsRequestTopic:
    topic_name: str = ""


@dataclass(slots=True)
class DeleteShareGroupOffsetsRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    group_id: str = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = array()


@dataclass(slots=True)
class DeleteShareGroupOffsetsResponseTopic:
    topic_name: str = ""
    topic_id: Uuid = NO_UUID
    error_code: Int16 = 0
    error_message: str | None = None


@dataclass(slots=True)
class DeleteShareGroupOffsetsResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic] = array()
