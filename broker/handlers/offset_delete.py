"""OffsetDelete (key 47): committed offsets are forgotten, of topics that the group does not read any more.

Version 0. No field is ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

from millrace.broker.coordinators.groups.coordinator import GroupCoordinator, GroupShard
from millrace.broker.coordinators.groups.offsets import OffsetKey
from millrace.broker.coordinators.runtime.deferred import DeferredResponse, Outcome, unchanged
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.requests.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from millrace.runtime.scheduling.chunks import in_chunks

PARTITIONS_PER_CHUNK = 400  # two or three milliseconds


class OffsetDelete:
    def __init__(self, coordinator: GroupCoordinator, cache: MetadataCache) -> None:
        self._coordinator = coordinator
        self._cache = cache

    def handle(
        self, context: RequestContext, request: OffsetDeleteRequest
    ) -> (
        OffsetDeleteResponse
        | asyncio.Future[OffsetDeleteResponse]
        | Coroutine[Any, Any, OffsetDeleteResponse]
    ):
        if not request.group_id:
            return _refusal(ErrorCode.INVALID_GROUP_ID)
        if sum(map(_weight, request.topics)) > PARTITIONS_PER_CHUNK:
            return self._delete_in_chunks(context, request)
        return self._begin(request)

    async def _delete_in_chunks(
        self, context: RequestContext, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse:
        """The caller yields between two chunks, each of which is judged by the group as it is then, and
        waited for. The first that is refused whole ends it: what was deleted before it is deleted."""
        response = OffsetDeleteResponse()
        async for parts in in_chunks(_parts(request), PARTITIONS_PER_CHUNK, context.work, _weight):
            outcome = self._begin(OffsetDeleteRequest(request.group_id, list(parts)))
            part = await outcome if isinstance(outcome, asyncio.Future) else outcome
            if part.error_code:
                return part
            for topic in part.topics:
                if response.topics and response.topics[-1].name == topic.name:
                    response.topics[-1].partitions += topic.partitions
                else:
                    response.topics.append(topic)
        return response

    def _begin(self, request: OffsetDeleteRequest) -> Outcome[OffsetDeleteResponse]:
        return self._coordinator.ask(request.group_id, lambda shard: self._delete(shard, request), _refusal)

    def _delete(self, shard: GroupShard, request: OffsetDeleteRequest) -> Outcome[OffsetDeleteResponse]:
        group_id = request.group_id
        code = shard.machine.refusal_of_offset_delete(group_id)
        if code:
            return _refusal(code)
        response = OffsetDeleteResponse()
        keys: list[OffsetKey] = []
        for topic in request.topics:
            answered = OffsetDeleteResponseTopic(topic.name)
            response.topics.append(answered)
            for asked in topic.partitions:
                code = self._refusal_at(shard, group_id, topic.name, asked.partition_index)
                answered.partitions.append(OffsetDeleteResponsePartition(asked.partition_index, int(code)))
                if not code:
                    keys.append((group_id, topic.name, asked.partition_index))
        shard.carry_out(shard.machine.delete_offsets(keys, shard.now()))
        deferred: DeferredResponse[OffsetDeleteResponse] = DeferredResponse(unchanged, _refusal)
        shard.when_durable(deferred, response)
        return deferred.outcome()

    def _refusal_at(self, shard: GroupShard, group_id: str, topic: str, partition: int) -> int:
        found = self._cache.image.topics.by_name(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        group = shard.machine.groups[group_id]
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed(topic) else ErrorCode.NONE


def _refusal(code: int) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=int(code))


def _weight(topic: OffsetDeleteRequestTopic) -> int:
    return 1 + len(topic.partitions)


def _parts(request: OffsetDeleteRequest) -> Iterator[OffsetDeleteRequestTopic]:
    """The request's topics, wide ones in several parts."""
    for topic in request.topics:
        for start in range(0, max(1, len(topic.partitions)), PARTITIONS_PER_CHUNK):
            yield OffsetDeleteRequestTopic(topic.name, topic.partitions[start : start + PARTITIONS_PER_CHUNK])
