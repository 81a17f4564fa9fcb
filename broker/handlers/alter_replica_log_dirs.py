"""AlterReplicaLogDirs (key 34): a partition may be sent to the directory it is in, and there is no other.

Versions 1 to 2. No field is ignored.

Not here: moving anything. Codes are Kafka's: LOG_DIR_NOT_FOUND for a directory this broker does not have,
then UNKNOWN_TOPIC_OR_PARTITION for a partition that does not exist, REPLICA_NOT_AVAILABLE for one that
another broker holds: kafka-reassign-partitions asks again then, and gives up at any other.
"""

from __future__ import annotations

import posixpath
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any

from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.requests.request import RequestContext
from millrace.kraft.tables.topics import Topics
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from millrace.runtime.scheduling.chunks import in_chunks

PARTITIONS_PER_CHUNK = 1000
Place = tuple[
    AlterReplicaLogDirTopicResult, int | None, bool
]  # where its answer goes, the partition (None: of a topic that names none), whether its directory is ours


class AlterReplicaLogDirs:
    def __init__(self, cache: MetadataCache, log_dir: str) -> None:
        self._cache = cache
        self._log_dir = posixpath.normpath(log_dir)

    def handle(
        self, context: RequestContext, request: AlterReplicaLogDirsRequest
    ) -> AlterReplicaLogDirsResponse | Coroutine[Any, Any, AlterReplicaLogDirsResponse]:
        topics = [topic for asked in request.dirs for topic in asked.topics]
        if (
            len(request.dirs) + len(topics) + sum(len(topic.partitions) for topic in topics)
            > PARTITIONS_PER_CHUNK
        ):
            return self._answer_many(context, request)
        results: dict[str, AlterReplicaLogDirTopicResult] = {}
        self._judge_all(self._cache.image.topics, self._places(request, results))
        return AlterReplicaLogDirsResponse(results=list(results.values()))

    async def _answer_many(
        self, context: RequestContext, request: AlterReplicaLogDirsRequest
    ) -> AlterReplicaLogDirsResponse:
        """By one image, whatever changes meanwhile."""
        topics = self._cache.image.topics
        results: dict[str, AlterReplicaLogDirTopicResult] = {}
        async for part in in_chunks(self._places(request, results), PARTITIONS_PER_CHUNK, context.work):
            self._judge_all(topics, part)
        return AlterReplicaLogDirsResponse(results=list(results.values()))

    def _places(
        self, request: AlterReplicaLogDirsRequest, results: dict[str, AlterReplicaLogDirTopicResult]
    ) -> Iterator[Place]:
        for asked in request.dirs:
            is_here = posixpath.isabs(asked.path) and posixpath.normpath(asked.path) == self._log_dir
            for topic in asked.topics:
                result = results.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic.name))
                if not topic.partitions:
                    yield result, None, is_here  # so that whoever counts them comes by
                for index in topic.partitions:
                    yield result, index, is_here

    def _judge_all(self, topics: Topics, places: Iterable[Place]) -> None:
        for result, index, is_here in places:
            if index is None:
                continue
            code = self._judge(topics, result.topic_name, index) if is_here else ErrorCode.LOG_DIR_NOT_FOUND
            result.partitions.append(AlterReplicaLogDirPartitionResult(index, int(code)))

    def _judge(self, topics: Topics, name: str, index: int) -> ErrorCode:
        topic = topics.by_name(name)
        state = None if topic is None else topics.partition(topic.topic_id, index)
        if state is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE if state.leader == self._cache.node_id else ErrorCode.REPLICA_NOT_AVAILABLE
