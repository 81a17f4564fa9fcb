"""DescribeTopicPartitions (key 75): topics and partitions a page at a time, by name (KIP-966).

Version 0. No field is ignored.

A page holds at most PARTITIONS_MAX partitions whatever was asked for; `next_cursor` says where the next
begins. A cursor into a topic that was not asked for, or at no partition, is refused (INVALID_REQUEST), as in
Kafka. Many names are looked up in chunks, in one image.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from heapq import merge
from itertools import groupby
from typing import Any

from millrace.broker.metadata_cache import INTERNAL_TOPICS, MetadataCache
from millrace.broker.requests.operations import TOPIC_OPERATIONS
from millrace.broker.requests.request import RequestContext
from millrace.broker.told_replicas import ToldReplicas
from millrace.kraft.commands.create_topics import name_fault
from millrace.kraft.tables.topics import Topic, Topics
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from millrace.runtime.scheduling.chunks import in_chunks

PARTITIONS_MAX = 2000
NAMES_PER_CHUNK = 500
NAMES_PER_RUN = 5_000
PARTITIONS_PER_CHUNK = 500  # more are encoded in chunks


class DescribeTopicPartitions:
    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def handle(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse | Coroutine[Any, Any, DescribeTopicPartitionsResponse]:
        partitions_count = min(request.response_partition_limit, self._cache.image.topics.partition_count)
        if len(request.topics) > NAMES_PER_CHUNK or partitions_count > PARTITIONS_PER_CHUNK:
            return self._answer_many(context, request)
        topics = self._cache.image.topics
        names = sorted({asked.name for asked in request.topics}) or [topic.name for topic in topics]
        page = _Page(topics, request, self._cache.told(context.connection))
        page.add([name for name in names if page.is_on(name)])
        return page.response

    async def _answer_many(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse:
        """By one image, whatever changes meanwhile."""
        await context.work.yield_now()
        topics = self._cache.image.topics
        page = _Page(topics, request, self._cache.told(context.connection))
        sound = await _in_order(request, context) if request.topics else (topic.name for topic in topics)
        async for names in in_chunks(sound, NAMES_PER_CHUNK, context.work):
            page.add([name for name in names if page.is_on(name)])
            if page.response.next_cursor is not None:
                break
        return page.response

    def refuse(self, request: DescribeTopicPartitionsRequest, code: int) -> DescribeTopicPartitionsResponse:
        topics = [DescribeTopicPartitionsResponseTopic(code, asked.name) for asked in request.topics]
        return DescribeTopicPartitionsResponse(topics=topics)


async def _in_order(request: DescribeTopicPartitionsRequest, context: RequestContext) -> Iterator[str]:
    """Each name once. Sorted in runs, which are merged as they are read."""
    runs: list[list[str]] = []
    async for part in in_chunks(request.topics, NAMES_PER_RUN, context.work):
        runs.append(sorted({asked.name for asked in part}))
    return (name for name, _ in groupby(merge(*runs)))


class _Page:
    """A page in the making. Raises KafkaError for a cursor that is nowhere."""

    def __init__(self, topics: Topics, request: DescribeTopicPartitionsRequest, told: ToldReplicas) -> None:
        cursor = request.cursor
        if cursor is not None:
            is_asked = not request.topics or any(asked.name == cursor.topic_name for asked in request.topics)
            _check_cursor(cursor, is_asked=is_asked)
        self.response = DescribeTopicPartitionsResponse()
        self._topics = topics
        self._cursor = cursor
        self._told = told
        self._left = min(max(request.response_partition_limit, 1), PARTITIONS_MAX)

    def is_on(self, name: str) -> bool:
        """Not before the cursor."""
        return self._cursor is None or name >= self._cursor.topic_name

    def add(self, names: Sequence[str]) -> None:
        """The next of these, in order, until the page is full: then its response has a cursor."""
        for name in names:
            if self._left == 0:
                self.response.next_cursor = Cursor(name, 0)
                return
            topic = self._topics.by_name(name)
            if topic is None:
                self.response.topics.append(_missing(name))
            elif not self._has_room(topic):
                return

    def _has_room(self, topic: Topic) -> bool:
        """Adds what fits of the topic; whether that is all of it."""
        cursor = self._cursor
        start = cursor.partition_index if cursor is not None and cursor.topic_name == topic.name else 0
        described = _describe(topic, start, self._left, self._told)
        self.response.topics.append(described)
        self._left -= len(described.partitions)
        end = start + len(described.partitions)
        if end < len(topic.partitions):
            self.response.next_cursor = Cursor(topic.name, end)
            return False
        return True


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    is_possible = name_fault(name) is None
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_possible else ErrorCode.INVALID_TOPIC_EXCEPTION
    missing = DescribeTopicPartitionsResponseTopic(int(code), name, is_internal=name in INTERNAL_TOPICS)
    missing.topic_authorized_operations = TOPIC_OPERATIONS
    return missing


def _check_cursor(cursor: Cursor, *, is_asked: bool) -> None:
    if cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the cursor's partition is {cursor.partition_index}")
    if not is_asked:
        text = f"the cursor is in topic {cursor.topic_name}, which was not asked for"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def _describe(
    topic: Topic, start: int, count: int, told: ToldReplicas
) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for index, state in enumerate(topic.partitions[start : start + count], start):
        leader, replicas, offline, *_ = told.of(topic.topic_id, index, state)
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=0,  # also without a leader, as in Kafka
                partition_index=index,
                leader_id=leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=replicas,
                isr_nodes=list(state.isr),
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=offline,
            )
        )
    is_internal = topic.name in INTERNAL_TOPICS
    return DescribeTopicPartitionsResponseTopic(
        0, topic.name, topic.topic_id, is_internal, partitions, TOPIC_OPERATIONS
    )
