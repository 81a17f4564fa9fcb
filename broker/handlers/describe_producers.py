"""DescribeProducers (key 61): the producers that a partition remembers (KIP-664), for operators who look for
what holds a log back.

Version 0. No field is ignored.

Asking opens a partition that is not open. One that is named again is answered once. Not here: what is
remembered (partitions/producers.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Hashable
from typing import Any

from millrace.broker.errors import code_of
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.partitions.producers import Producer
from millrace.broker.requests.openings import settled
from millrace.broker.requests.repeated import unmet
from millrace.broker.requests.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from millrace.runtime.scheduling.chunks import in_chunks
from millrace.runtime.scheduling.semaphore import Owner

log = logging.getLogger(__name__)

PARTITIONS_PER_CHUNK = 100  # each is a task
TOPICS_PER_CHUNK = 1_000  # that name no partition
NO_TOPIC = "This server does not host this topic-partition."


class DescribeProducers:
    def __init__(self, directory: PartitionDirectory) -> None:
        self._directory = directory

    def handle(
        self, context: RequestContext, request: DescribeProducersRequest
    ) -> Coroutine[Any, Any, DescribeProducersResponse]:
        return self._answer(context, request)

    def refuse(self, request: DescribeProducersRequest, code: int) -> DescribeProducersResponse:
        topics = []
        for topic in request.topics:
            answers = [PartitionResponse(index, int(code)) for index in topic.partition_indexes]
            topics.append(TopicResponse(topic.name, answers))
        return DescribeProducersResponse(topics=topics)

    async def _answer(
        self, context: RequestContext, request: DescribeProducersRequest
    ) -> DescribeProducersResponse:
        places = ((topic.name, index) for topic in request.topics for index in topic.partition_indexes)
        await settled(self._directory, places, context.connection.owner, context.work.yield_queue)
        response = DescribeProducersResponse()
        met: dict[str, set[Hashable]] = {}
        async for topics in in_chunks(request.topics, TOPICS_PER_CHUNK, context.work):
            for topic in topics:
                answers = TopicResponse(topic.name)
                response.topics.append(answers)
                met_of_topic = met.setdefault(topic.name, set())
                async for part in in_chunks(topic.partition_indexes, PARTITIONS_PER_CHUNK, context.work):
                    named = unmet(part, met_of_topic, int)
                    await context.work.begin_tasks(len(part))
                    answers.partitions += await asyncio.gather(
                        *(self._describe(topic.name, index, context.connection.owner) for index in named)
                    )
        return response

    async def _describe(self, name: str, index: int, asker: Owner) -> PartitionResponse:
        try:
            partition = self._directory.at_hand(name, index, asker)
        except Exception as error:
            code = code_of(error)
            if code is None:
                log.error("%s-%d: producers", name, index, exc_info=error)
            text = NO_TOPIC if self._directory.topic_named(name) is None else None
            return PartitionResponse(index, int(code or ErrorCode.UNKNOWN_SERVER_ERROR), text)
        return PartitionResponse(index, active_producers=[_state_of(p) for p in partition.state.producers])


def _state_of(producer: Producer) -> ProducerState:
    last = producer.batches[-1] if producer.batches else None
    return ProducerState(
        producer.producer_id,
        producer.epoch,
        -1 if last is None else last.last_sequence,
        -1 if last is None else last.timestamp_ms,
        producer.coordinator_epoch,
        producer.transaction_start,
    )
