"""Decides DeleteTopics: topics go with their configuration, their partitions and their streams, in one
commit. Pure.

Objects that thereby hold nothing any more are marked for deletion by the same commit (tables/objects.py). Not
here: whether deleting is allowed (the broker).
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from millrace.kraft.commands.decision import Decision
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.topics import Topic
from millrace.protocol.declare import NO_UUID
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from millrace.protocol.metadata_records import RemoveTopicRecord
from millrace.protocol.stream_records import RemoveStreamsRecord
from millrace.runtime.scheduling.yielding import Yielding, run_to_end

TOPICS_PER_CHUNK: Final = 200
NAMES_PER_CHUNK: Final = 2000
STREAMS_A_RECORD: Final = 200


def decide_delete_topics(image: MetadataImage, request: DeleteTopicsRequest, now_ms: int) -> Decision:
    return run_to_end(decide_delete_topics_yielding(image, request, now_ms))


def decide_delete_topics_yielding(
    image: MetadataImage, request: DeleteTopicsRequest, now_ms: int
) -> Yielding[Decision]:
    """With a pause after every so many topics or streams: the image is the same after it. A topic that is
    refused has its error in the response; none is raised."""
    decision = Decision(DeleteTopicsResponse())
    counts: Counter[tuple[str | None, bytes]] = Counter()
    for place, state in enumerate(request.topics, 1):
        counts[state.name, state.topic_id] += 1
        if place % NAMES_PER_CHUNK == 0:
            yield
    for place, name in enumerate(request.topic_names, 1):
        counts[name, NO_UUID] += 1
        if place % NAMES_PER_CHUNK == 0:
            yield
    taken: set[bytes] = set()
    for place, (asked_name, asked_id) in enumerate(counts, 1):
        state = DeleteTopicState(asked_name, asked_id)
        if place % TOPICS_PER_CHUNK == 0:
            yield
        result = DeletableTopicResult(state.name, state.topic_id)
        try:
            if counts[state.name, state.topic_id] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name or id.")
            topic = named(image, state)
            if topic.topic_id in taken:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The topic was named twice, by name and by id.")
            taken.add(topic.topic_id)
            result.name, result.topic_id = topic.name, topic.topic_id
            yield from add_removal(decision.records, image, topic, now_ms)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        decision.response.responses.append(result)
    return decision


def named(image: MetadataImage, state: DeleteTopicState) -> Topic:
    """Raises KafkaError INVALID_REQUEST where both name and id are given or neither,
    UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID where there is no such topic."""
    if state.name is not None and state.topic_id != NO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A topic is named by its name or by its id, not by both.")
    if state.name is None and state.topic_id == NO_UUID:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "A topic is named by its name or by its id, and this one by neither."
        )
    if state.name is not None:
        topic = image.topics.by_name(state.name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        topic = image.topics.by_id(state.topic_id)
        code = ErrorCode.UNKNOWN_TOPIC_ID
    if topic is None:
        raise KafkaError(code, "This server does not host this topic.")
    return topic


def add_removal(records: list[Any], image: MetadataImage, topic: Topic, now_ms: int) -> Yielding[None]:
    """The streams' records are small, so that applying one is; all are of one decision."""
    stream_ids: list[int] = []
    for stream in image.streams.of_topic(topic.topic_id):
        stream_ids.append(stream.stream_id)
        if len(stream_ids) == STREAMS_A_RECORD:
            records.append(RemoveStreamsRecord(stream_ids, now_ms))
            stream_ids = []
            yield
    if stream_ids:
        records.append(RemoveStreamsRecord(stream_ids, now_ms))
    records.append(RemoveTopicRecord(topic.topic_id))
