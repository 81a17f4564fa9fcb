"""OffsetForLeaderEpoch (key 23): where a leader epoch ended.

Versions 2 to 4. Ignored: `replica_id`.

Consumers ask after a change of leader, to see whether what they read was cut off. Nothing that anybody was
shown is ever cut off here; an end that is not durable yet is not told, as it might be another's tomorrow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from millrace.broker.errors import code_of
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.partitions.partition import Partition
from millrace.broker.requests.openings import settled
from millrace.broker.requests.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from millrace.runtime.scheduling.chunks import in_chunks
from millrace.runtime.scheduling.semaphore import Owner

log = logging.getLogger(__name__)

PARTITIONS_PER_CHUNK = 100  # each is a task
TOPICS_PER_CHUNK = 1_000  # that name no partition


class OffsetForLeaderEpoch:
    def __init__(self, directory: PartitionDirectory) -> None:
        self._directory = directory

    def handle(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> Coroutine[Any, Any, OffsetForLeaderEpochResponse]:
        return self._answer(context, request)

    def refuse(self, request: OffsetForLeaderEpochRequest, code: int) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            answers = [EpochEndOffset(int(code), asked.partition) for asked in topic.partitions]
            topics.append(OffsetForLeaderTopicResult(topic.topic, answers))
        return OffsetForLeaderEpochResponse(topics=topics)

    async def _answer(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        named = ((topic.topic, asked.partition) for topic in request.topics for asked in topic.partitions)
        owner, yielder = context.connection.owner, context.work.yield_queue
        await settled(self._directory, named, owner, yielder, is_reading=True)
        response = OffsetForLeaderEpochResponse()
        async for topics in in_chunks(request.topics, TOPICS_PER_CHUNK, context.work):
            for topic in topics:
                answers = OffsetForLeaderTopicResult(topic.topic)
                response.topics.append(answers)
                async for part in in_chunks(topic.partitions, PARTITIONS_PER_CHUNK, context.work):
                    await context.work.begin_tasks(len(part))
                    answers.partitions += await asyncio.gather(
                        *(self._end_of(topic.topic, asked, context.connection.owner) for asked in part)
                    )
        return response

    async def _end_of(self, name: str, asked: OffsetForLeaderPartition, asker: Owner) -> EpochEndOffset:
        try:
            return _end_in(self._directory.at_hand(name, asked.partition, asker, is_reading=True), asked)
        except Exception as error:
            code = code_of(error)
            if code is None:
                log.error("%s-%d: epoch %d", name, asked.partition, asked.leader_epoch, exc_info=error)
            return EpochEndOffset(int(code or ErrorCode.UNKNOWN_SERVER_ERROR), asked.partition)


def _end_in(partition: Partition, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    code = partition.epoch_refusal(asked.current_leader_epoch)
    if code:
        return EpochEndOffset(code, asked.partition)
    epoch, end = partition.end_of_epoch(asked.leader_epoch)
    return EpochEndOffset(0, asked.partition, epoch, end)
