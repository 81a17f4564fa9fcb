"""DescribeTopicPartitions (key 75): topics and partitions a page at a time, by name (KIP-966).

A page holds at most PARTITIONS_MAX partitions whatever was asked for; `next_cursor` says where the next begins. A cursor into a topic that
was not asked for, or at no partition, is refused (INVALID_REQUEST), as in Kafka.
"""

from __future__ import annotations

from millrace.broker.metadata_cache import INTERNAL_TOPICS, MetadataCache
from millrace.broker.operations import TOPIC_OPERATIONS
from millrace.broker.request import RequestContext
from millrace.kraft.tables.create_topics import name_fault
from millrace.kraft.tables.topics import Topic
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

PARTITIONS_MAX = 2000


class DescribeTopicPartitions:
    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def handle(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse:
        topics = self._cache.image.topics
        if request.topics:
            names = sorted({asked.name for asked in request.topics})
        else:
            names = [topic.name for topic in topics]
        cursor = request.cursor
        if cursor is not None:
            _check_cursor(cursor, names if request.topics else None)
            names = [name for name in names if name >= cursor.topic_name]
        left = min(max(request.response_partition_limit, 1), PARTITIONS_MAX)
        response = DescribeTopicPartitionsResponse()
        for name in names:
            if left == 0:
                response.next_cursor = Cursor(name, 0)
                break
            topic = topics.by_name(name)
            if topic is None:
                if request.topics:
                    is_possible = name_fault(name) is None
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_possible else ErrorCode.INVALID_TOPIC_EXCEPTION
                    missing = DescribeTopicPartitionsResponseTopic(int(code), name)
                    missing.topic_authorized_operations = TOPIC_OPERATIONS
                    response.topics.append(missing)
                continue
            start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
            described = _describe(topic, start, left)
            response.topics.append(described)
            left -= len(described.partitions)
            end = start + len(described.partitions)
            if end < len(topic.partitions):
                response.next_cursor = Cursor(name, end)
                break
        return response

    def refuse(self, request: DescribeTopicPartitionsRequest, code: int) -> DescribeTopicPartitionsResponse:
        topics = [DescribeTopicPartitionsResponseTopic(code, asked.name) for asked in request.topics]
        return DescribeTopicPartitionsResponse(topics=topics)


def _check_cursor(cursor: Cursor, names: list[str] | None) -> None:
    """`names` None: all topics were asked for."""
    if cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the cursor's partition is {cursor.partition_index}")
    if names is not None and cursor.topic_name not in names:
        text = f"the cursor is in topic {cursor.topic_name}, which was not asked for"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def _describe(topic: Topic, start: int, count: int) -> DescribeTopicPartitionsResponseTopic:
    partitions = [
        DescribeTopicPartitionsResponsePartition(
            error_code=int(ErrorCode.LEADER_NOT_AVAILABLE if state.leader < 0 else ErrorCode.NONE),
            partition_index=index,
            leader_id=state.leader,
            leader_epoch=state.leader_epoch,
            replica_nodes=list(state.replicas),
            isr_nodes=list(state.isr),
            eligible_leader_replicas=[],
            last_known_elr=[],
        )
        for index, state in enumerate(topic.partitions[start : start + count], start)
    ]
    is_internal = topic.name in INTERNAL_TOPICS
    return DescribeTopicPartitionsResponseTopic(
        0, topic.name, topic.topic_id, is_internal, partitions, TOPIC_OPERATIONS
    )
