"""DeleteTopics (key 20): deletes topics, by name or, from version 6 on, by id."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Uuid, Versions, array, wire


@dataclass(slots=True)
class DeleteTopicState:
    name: str | None = None  # null: by id
    topic_id: Uuid = NO_UUID


@dataclass(slots=True)
class DeleteTopicsRequest:
    VERSIONS = Versions(1, 6, flexible=4)

    topics: list[DeleteTopicState] = array(since=6)
    topic_names: list[str] = array(until=5, ignorable=True)
    timeout_ms: Int32 = 0


@dataclass(slots=True)
class DeletableTopicResult:
    name: str | None = wire("", nullable_since=6)  # null for an id that nobody has
    topic_id: Uuid = wire(NO_UUID, since=6, ignorable=True)
    error_code: Int16 = 0  # TOPIC_DELETION_DISABLED, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID
    error_message: str | None = wire(None, since=5, ignorable=True)


@dataclass(slots=True)
class DeleteTopicsResponse:
    VERSIONS = Versions(1, 6, flexible=4)

    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult] = array()
