"""FindCoordinator (key 10): which broker coordinates a group. Transactions and share groups are not served
yet.

Versions 0 to 6. No field is ignored.

The internal topic is made on first need; until it is there the answer is COORDINATOR_NOT_AVAILABLE, which
clients retry.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from millrace.broker.coordinators.groups.config import OFFSETS_TOPIC
from millrace.broker.coordinators.runtime.partitioning import partition_for
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.requests.request import RequestContext
from millrace.broker.requests.transaction_refusals import TEXT, TransactionRefusals
from millrace.broker.topic_creation import TopicCreation
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from millrace.runtime.scheduling.chunks import in_chunks

GROUP, TRANSACTION = 0, 1
KEYS_PER_CHUNK = 100
KEY_CHARS = 250  # a key that is so long weighs as two: each character is hashed


class FindCoordinator:
    def __init__(self, cache: MetadataCache, creation: TopicCreation, refusals: TransactionRefusals) -> None:
        self._cache = cache
        self._creation = creation
        self._refusals = refusals

    def handle(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse | Coroutine[Any, Any, FindCoordinatorResponse]:
        context.connection.is_consuming |= request.key_type == GROUP
        if request.key_type == GROUP and self._cache.image.topics.by_name(OFFSETS_TOPIC) is None:
            return self._create_then_answer(context, request)
        keys = request.coordinator_keys
        if len(keys) > KEYS_PER_CHUNK or sum(map(_weight, keys)) > KEYS_PER_CHUNK:
            return self._answer_many(context, request)
        return self._answer(context, request)

    async def _create_then_answer(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        await self._creation.ensure([OFFSETS_TOPIC], context)
        return await self._answer_many(context, request)

    async def _answer_many(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        """Where each is at the moment at which it was looked for."""
        if context.api_version < 4:
            return self._answer(context, request)
        response = FindCoordinatorResponse()
        async for part in in_chunks(request.coordinator_keys, KEYS_PER_CHUNK, context.work, _weight):
            response.coordinators += [self._locate(context, request.key_type, key) for key in part]
        return response

    def _answer(self, context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        if context.api_version >= 4:
            found = [self._locate(context, request.key_type, key) for key in request.coordinator_keys]
            return FindCoordinatorResponse(coordinators=found)
        one = self._locate(context, request.key_type, request.key)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message
            if one.error_code
            else "NONE",  # as Kafka says, in these versions alone
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _locate(self, context: RequestContext, key_type: int, key: str) -> Coordinator:
        if key_type == TRANSACTION:
            return Coordinator(key, -1, "", -1, int(self._refusals.coordinator_code(context, key)), TEXT)
        if key_type != GROUP:
            return Coordinator(
                key, -1, "", -1, int(ErrorCode.INVALID_REQUEST), f"unknown coordinator type {key_type}"
            )
        topic = self._cache.image.topics.by_name(OFFSETS_TOPIC)
        leader = -1 if topic is None else topic.partitions[partition_for(key, len(topic.partitions))].leader
        node = self._cache.node(leader, context.connection)
        if node is None or node.is_fenced:
            text = "the coordinator is being found; try again"
            return Coordinator(key, -1, "", -1, int(ErrorCode.COORDINATOR_NOT_AVAILABLE), text)
        return Coordinator(key, node.node_id, node.host, node.port)


def _weight(key: str) -> int:
    return 1 + len(key) // KEY_CHARS
