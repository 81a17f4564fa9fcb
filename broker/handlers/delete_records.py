"""DeleteRecords (key 21): the log's start moves forward, and what lies below it is no longer shown.

Versions 0 to 2. No field is ignored.

Answered when the new start is durable; the streams are trimmed after that. Offset -1 means the high
watermark. Partitions whose policy does not delete, and topics of the broker's own, are refused as Kafka
refuses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from millrace.broker.errors import code_of
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.partitions.partition import Partition
from millrace.broker.requests.openings import settled
from millrace.broker.requests.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from millrace.runtime.clock import Clock
from millrace.runtime.scheduling.chunks import in_chunks
from millrace.runtime.scheduling.semaphore import Owner

log = logging.getLogger(__name__)

HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1
TIMEOUT_MS_MIN = 1000
PARTITIONS_PER_CHUNK = 100  # each is a task
TOPICS_PER_CHUNK = 1_000  # that name no partition


class DeleteRecords:
    def __init__(self, directory: PartitionDirectory, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock

    def handle(
        self, context: RequestContext, request: DeleteRecordsRequest
    ) -> Coroutine[Any, Any, DeleteRecordsResponse]:
        return self._answer(context, request)

    def refuse(self, request: DeleteRecordsRequest, code: int) -> DeleteRecordsResponse:
        topics = []
        for topic in request.topics:
            answers = [_failed(asked.partition_index, code) for asked in topic.partitions]
            topics.append(DeleteRecordsTopicResult(topic.name, answers))
        return DeleteRecordsResponse(topics=topics)

    async def _answer(self, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        asker = context.connection.owner
        timeout_s = max(TIMEOUT_MS_MIN, request.timeout_ms) / 1000
        allowed = (topic for topic in request.topics if not self._refusal_of(topic.name))
        named = ((topic.name, one.partition_index) for topic in allowed for one in topic.partitions)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await settled(self._directory, named, asker, context.work.yield_queue)
        response = DeleteRecordsResponse()
        async for topics in in_chunks(request.topics, TOPICS_PER_CHUNK, context.work):
            for topic in topics:
                answers = DeleteRecordsTopicResult(topic.name)
                response.topics.append(answers)
                async for part in in_chunks(topic.partitions, PARTITIONS_PER_CHUNK, context.work):
                    await context.work.begin_tasks(len(part))
                    answers.partitions += await asyncio.gather(
                        *(self._delete(topic.name, asked, timeout_s, asker) for asked in part)
                    )
        return response

    async def _delete(
        self, name: str, asked: DeleteRecordsPartition, timeout_s: float, asker: Owner
    ) -> DeleteRecordsPartitionResult:
        """A timeout means unknown: the deletion may still come to be."""
        index = asked.partition_index
        try:
            async with asyncio.timeout(timeout_s):
                if refusal := self._refusal_of(name):
                    raise KafkaError(refusal)
                partition = self._directory.at_hand(name, index, asker)
                await self._raise_start(partition, asked.offset)
                return DeleteRecordsPartitionResult(index, partition.log_start_offset)
        except Exception as error:
            code = code_of(error)
            if code is None:
                log.error("%s-%d: deletion below %d", name, index, asked.offset, exc_info=error)
            return _failed(index, code or ErrorCode.UNKNOWN_SERVER_ERROR)

    def _refusal_of(self, name: str) -> int:
        """Of a topic, before its partitions are looked at; 0 for none."""
        led = self._directory.topic_named(name)
        if led is not None and led.is_internal:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if led is not None and not led.settings.is_deleted_by_retention:
            return ErrorCode.POLICY_VIOLATION
        return 0

    async def _raise_start(self, partition: Partition, offset: int) -> None:
        if offset == HIGH_WATERMARK:
            offset = partition.high_watermark
        if not 0 <= offset <= partition.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        partition.raise_log_start(
            offset, self._clock.wall_ms(), lambda: None if done.done() else done.set_result(None)
        )
        await done


def _failed(index: int, code: int) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(index, NO_LOW_WATERMARK, int(code))
