"""Metadata (key 3): where the brokers are, which topics there are and who leads their partitions.

A name that nobody has is created on the way where the setting and the request allow it; the answer then waits for the creation, so the client
needs no second round. Listing all topics never creates. A name that no topic may have is told from one that nobody has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from millrace.broker.metadata_cache import INTERNAL_TOPICS, MetadataCache
from millrace.broker.operations import CLUSTER_OPERATIONS, NO_OPERATIONS, TOPIC_OPERATIONS
from millrace.broker.request import RequestContext
from millrace.broker.topic_creation import CREATION_TIMEOUT_MS, TopicCreation
from millrace.kraft.tables.create_topics import name_fault
from millrace.kraft.tables.topics import Topic
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class Metadata:
    def __init__(self, cache: MetadataCache, creation: TopicCreation, *, auto_create: bool) -> None:
        self._cache = cache
        self._creation = creation
        self._auto_create = auto_create

    def handle(
        self, context: RequestContext, request: MetadataRequest
    ) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
        missing = self._names_to_create(context, request)
        if missing:
            return self._create_then_answer(context, request, missing)
        return self._answer(context, request, {})

    def _names_to_create(self, context: RequestContext, request: MetadataRequest) -> list[str]:
        if not self._auto_create or not request.allow_auto_topic_creation or not request.topics:
            return []
        topics = self._cache.image.topics
        names = [asked.name for asked in request.topics if asked.name and not any(asked.topic_id)]
        missing = [name for name in dict.fromkeys(names) if topics.by_name(name) is None]
        return [name for name in missing if name_fault(name) is None and self._creation.may_create(name)]

    async def _create_then_answer(
        self, context: RequestContext, request: MetadataRequest, missing: list[str]
    ) -> MetadataResponse:
        try:
            async with asyncio.timeout(CREATION_TIMEOUT_MS / 1000):
                errors = await self._creation.ensure(missing)
        except TimeoutError:
            errors = dict.fromkeys(missing, int(ErrorCode.LEADER_NOT_AVAILABLE))
        return self._answer(context, request, errors)

    def _answer(
        self, context: RequestContext, request: MetadataRequest, creation_errors: dict[str, int]
    ) -> MetadataResponse:
        image = self._cache.image
        nodes = self._cache.nodes(context.connection)
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(n.node_id, n.host, n.port, n.rack) for n in nodes if not n.is_fenced],
            cluster_id=self._cache.cluster_id,
            controller_id=self._cache.node_id,
        )
        wants_all = request.topics is None or (not request.topics and context.api_version == 0)
        if wants_all:
            response.topics = [self._describe(topic) for topic in image.topics]
        else:
            response.topics = [self._asked(asked, context, creation_errors) for asked in request.topics or ()]
        if request.include_topic_authorized_operations:
            for topic in response.topics:
                # Of names that no topic has, too; of unknown ids alone there is nothing to tell.
                topic.topic_authorized_operations = NO_OPERATIONS if topic.name is None else TOPIC_OPERATIONS
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response

    def _asked(
        self, asked: MetadataRequestTopic, context: RequestContext, creation_errors: dict[str, int]
    ) -> MetadataResponseTopic:
        topics = self._cache.image.topics
        if any(asked.topic_id):
            if context.api_version < 12:
                return MetadataResponseTopic(int(ErrorCode.INVALID_REQUEST), asked.name or "", asked.topic_id)
            topic = topics.by_id(asked.topic_id)
            if topic is None:
                return MetadataResponseTopic(int(ErrorCode.UNKNOWN_TOPIC_ID), None, asked.topic_id)
            return self._describe(topic)
        name = asked.name or ""
        topic = topics.by_name(name)
        if topic is not None:
            return self._describe(topic)
        code = creation_errors.get(name) or absence_code(name)
        return MetadataResponseTopic(int(code), name, is_internal=name in INTERNAL_TOPICS)

    def _describe(self, topic: Topic) -> MetadataResponseTopic:
        partitions = [
            MetadataResponsePartition(
                int(ErrorCode.LEADER_NOT_AVAILABLE if state.leader < 0 else ErrorCode.NONE),
                index,
                state.leader,
                state.leader_epoch,
                list(state.replicas),
                list(state.isr),
            )
            for index, state in enumerate(topic.partitions)
        ]
        return MetadataResponseTopic(0, topic.name, topic.topic_id, topic.name in INTERNAL_TOPICS, partitions)


def absence_code(name: str) -> ErrorCode:
    """Why there is no topic of that name."""
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name_fault(name) is None else ErrorCode.INVALID_TOPIC_EXCEPTION
