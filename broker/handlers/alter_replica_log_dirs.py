"""AlterReplicaLogDirs (key 34): a partition may be sent to the directory it is in, and there is no other.

Not here: moving anything. Codes are Kafka's: LOG_DIR_NOT_FOUND for a directory this broker does not have, then
UNKNOWN_TOPIC_OR_PARTITION for a partition that does not exist, NOT_LEADER_OR_FOLLOWER for one that another broker holds.
"""

from __future__ import annotations

import posixpath

from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


class AlterReplicaLogDirs:
    def __init__(self, cache: MetadataCache, log_dir: str) -> None:
        self._cache = cache
        self._log_dir = posixpath.normpath(log_dir)

    def handle(self, context: RequestContext, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
        results: dict[str, AlterReplicaLogDirTopicResult] = {}
        for asked in request.dirs:
            is_here = posixpath.isabs(asked.path) and posixpath.normpath(asked.path) == self._log_dir
            for topic in asked.topics:
                result = results.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic.name))
                for index in topic.partitions:
                    code = self._judge(topic.name, index) if is_here else ErrorCode.LOG_DIR_NOT_FOUND
                    result.partitions.append(AlterReplicaLogDirPartitionResult(index, int(code)))
        return AlterReplicaLogDirsResponse(results=list(results.values()))

    def _judge(self, name: str, index: int) -> ErrorCode:
        topics = self._cache.image.topics
        topic = topics.by_name(name)
        state = None if topic is None else topics.partition(topic.topic_id, index)
        if state is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE if state.leader == self._cache.node_id else ErrorCode.NOT_LEADER_OR_FOLLOWER
