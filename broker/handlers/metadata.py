"""Metadata (key 3): where the brokers are, which topics there are and who leads their partitions.

Versions 0 to 13. No field is ignored.

A name that nobody has is created on the way where the setting and the request allow it; the answer then waits
for the creation, so the client needs no second round. Listing all topics never creates. A name that no topic
may have is told from one that nobody has. More than a chunk is described in chunks, by one image. A topic
that is named more than once is described once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable, Iterable, Iterator
from typing import Any

from millrace.broker.metadata_cache import INTERNAL_TOPICS, MetadataCache
from millrace.broker.requests.operations import CLUSTER_OPERATIONS, NO_OPERATIONS, TOPIC_OPERATIONS
from millrace.broker.requests.readers import is_reading
from millrace.broker.requests.repeated import unmet
from millrace.broker.requests.request import Encoded, RequestContext
from millrace.broker.requests.shared_replies import SharedReplies
from millrace.broker.told_replicas import ToldReplicas
from millrace.broker.topic_creation import CREATION_TIMEOUT_MS, TopicCreation
from millrace.kraft.commands.create_topics import name_fault
from millrace.kraft.tables.topics import PartitionState, Topic, Topics
from millrace.protocol.apis import API
from millrace.protocol.codec import encode_response_yielding
from millrace.protocol.declare import NO_UUID
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millrace.runtime.scheduling.chunks import in_chunks
from millrace.runtime.scheduling.yield_queue import run_yielding

METADATA_KEY = 3
FIRST_WITH_LISTENERS = 6  # before it, clients do not know LISTENER_NOT_FOUND
FIRST_WITH_IDS = 12
PARTITIONS_PER_CHUNK = 1000  # a topic weighs as much as one
# What is asked for, each topic once; None: all topics.
Asked = Iterable[MetadataRequestTopic] | None
# What was asked for, None where all are; the topic, if there is one.
Found = tuple[MetadataRequestTopic | None, Topic | None]


class Metadata:
    def __init__(self, cache: MetadataCache, creation: TopicCreation, *, auto_create: bool) -> None:
        self._cache = cache
        self._creation = creation
        self._auto_create = auto_create
        self._shared = SharedReplies()

    def handle(
        self, context: RequestContext, request: MetadataRequest
    ) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse | Encoded]:
        topics = self._cache.image.topics
        wants_all = request.topics is None or (not request.topics and context.api_version == 0)
        if _is_large(topics, None if wants_all else request.topics):
            return self._answer_all(context, request) if wants_all else self._answer_many(context, request)
        asked = None if wants_all else unmet(request.topics or (), set(), _named)
        missing = self._names_to_create(topics, request, asked or ())
        if missing:
            return self._create_then_answer(context, request, asked, missing)
        return self._answer(context, request, asked, {})

    def _names_to_create(
        self, topics: Topics, request: MetadataRequest, asked: Iterable[MetadataRequestTopic]
    ) -> list[str]:
        if not self._auto_create or not request.allow_auto_topic_creation:
            return []
        names = [one.name for one in asked if one.name and not any(one.topic_id)]
        missing = [name for name in dict.fromkeys(names) if topics.by_name(name) is None]
        return [name for name in missing if self._creation.may_create(name)]

    async def _create_then_answer(
        self, context: RequestContext, request: MetadataRequest, asked: Asked, missing: list[str]
    ) -> MetadataResponse:
        return self._answer(context, request, asked, await self._create(missing, context))

    async def _answer_all(self, context: RequestContext, request: MetadataRequest) -> Encoded:
        """Of all topics: clients of one listener and version are given the same bytes while the image says
        the same. All clients of a broker ask this at once when it is back, and what they ask for may be
        megabytes."""
        await context.work.yield_now()
        is_told_more = len(self._cache.image.failovers) > 0 and is_reading(context, request)
        key = _sameness(context, request), is_told_more
        source = self._source()
        found = self._shared.find(key, source, context.correlation_id)
        if found is None:
            response = await self._described_all(context, request, None, {})
            steps = encode_response_yielding(
                API[METADATA_KEY], context.api_version, context.correlation_id, response
            )
            found = Encoded(await run_yielding(steps, context.work.yield_now))
            if all(one is other for one, other in zip(source, self._source(), strict=True)):
                self._shared.keep(key, source, found)
        return found

    def _source(self) -> tuple[object, ...]:
        """What such a reply is made from."""
        image = self._cache.image
        held = (image.failovers, image.streams) if len(image.failovers) else (None, None)
        return image.topics, image.brokers, self._cache.addresses, *held

    async def _answer_many(self, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        missing: list[str] = []
        asked: list[MetadataRequestTopic] = []
        met: set[Hashable] = set()
        async for named in in_chunks(request.topics or (), PARTITIONS_PER_CHUNK, context.work):
            part = unmet(named, met, _named)
            asked += part
            missing += self._names_to_create(self._cache.image.topics, request, part)
        errors = await self._create(missing, context) if missing else {}
        await context.work.yield_now()
        return await self._described_all(context, request, asked, errors)

    async def _described_all(
        self,
        context: RequestContext,
        request: MetadataRequest,
        asked: Asked,
        errors: dict[str, int],
    ) -> MetadataResponse:
        """By one image, in chunks; `asked` None: all topics."""
        response = self._with_brokers(context, request)
        found = _found(self._cache.image.topics, context, asked)
        async for topics in in_chunks(found, PARTITIONS_PER_CHUNK, context.work, _weight):
            self._add(response, context, request, topics, errors, is_brief=True)
            for _, topic in topics:
                if topic is not None and len(topic.partitions) > PARTITIONS_PER_CHUNK:
                    answer = response.topics[-1]  # a wide one ends its chunk
                    told = self._told(context, request)
                    async for states in in_chunks(
                        enumerate(topic.partitions), PARTITIONS_PER_CHUNK, context.work
                    ):
                        answer.partitions += [
                            _described_partition(topic, index, state, told, context.api_version)
                            for index, state in states
                        ]
        return response

    async def _create(self, missing: list[str], context: RequestContext) -> dict[str, int]:
        try:
            async with asyncio.timeout(CREATION_TIMEOUT_MS / 1000):
                return await self._creation.ensure(missing, context)
        except TimeoutError:
            return dict.fromkeys(missing, int(ErrorCode.LEADER_NOT_AVAILABLE))

    def _answer(
        self, context: RequestContext, request: MetadataRequest, asked: Asked, creation_errors: dict[str, int]
    ) -> MetadataResponse:
        response = self._with_brokers(context, request)
        found = _found(self._cache.image.topics, context, asked)
        self._add(response, context, request, found, creation_errors)
        return response

    def _told(self, context: RequestContext, request: MetadataRequest) -> ToldReplicas:
        return self._cache.told(context.connection, has_readers=is_reading(context, request))

    def _with_brokers(self, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        nodes = self._cache.nodes(context.connection)
        # A lone broker that ends or starts is there, for it answers; clients take no empty list.
        shown = [one for one in nodes if not one.is_fenced] or [
            one for one in nodes if one.node_id == self._cache.node_id
        ]
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(n.node_id, n.host, n.port, n.rack) for n in shown],
            cluster_id=self._cache.cluster_id,
            controller_id=self._cache.node_id,
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response

    def _add(
        self,
        response: MetadataResponse,
        context: RequestContext,
        request: MetadataRequest,
        found: Iterable[Found],
        creation_errors: dict[str, int],
        *,
        is_brief: bool = False,
    ) -> None:
        """`is_brief`: without the partitions of wide topics."""
        told, version = self._told(context, request), context.api_version
        for asked, topic in found:
            if topic is not None:
                answer = _described(topic, told, version, PARTITIONS_PER_CHUNK if is_brief else None)
            else:
                assert asked is not None
                answer = _missing(asked, version, creation_errors)
            if request.include_topic_authorized_operations:
                # Of names that no topic has, too; of unknown ids alone there is nothing to tell.
                answer.topic_authorized_operations = (
                    NO_OPERATIONS if answer.name is None else TOPIC_OPERATIONS
                )
            response.topics.append(answer)


def _is_large(topics: Topics, asked: list[MetadataRequestTopic] | None) -> bool:
    """More than a chunk; `asked` None: all topics."""
    if asked is None:
        return len(topics) + topics.partition_count > PARTITIONS_PER_CHUNK
    if len(asked) + topics.partition_count <= PARTITIONS_PER_CHUNK:
        return False
    return (
        len(asked) > PARTITIONS_PER_CHUNK
        or sum(_weight((one, _topic(topics, one))) for one in asked) > PARTITIONS_PER_CHUNK
    )


def _weight(found: Found) -> int:
    return 1 if found[1] is None else 1 + len(found[1].partitions)


def _named(asked: MetadataRequestTopic) -> bytes | str | None:
    """By what a topic is looked for."""
    return asked.name if asked.topic_id == NO_UUID else asked.topic_id


def _found(topics: Topics, context: RequestContext, named: Asked) -> Iterator[Found]:
    """What is to be described, in order, of one image."""
    if named is None:
        for topic in topics:
            yield None, topic
        return
    for asked in named:
        is_refused = context.api_version < FIRST_WITH_IDS and any(asked.topic_id)
        yield asked, None if is_refused else _topic(topics, asked)


def _topic(topics: Topics, asked: MetadataRequestTopic) -> Topic | None:
    return topics.by_id(asked.topic_id) if any(asked.topic_id) else topics.by_name(asked.name or "")


def _missing(
    asked: MetadataRequestTopic, version: int, creation_errors: dict[str, int]
) -> MetadataResponseTopic:
    if any(asked.topic_id):
        if version < FIRST_WITH_IDS:
            return MetadataResponseTopic(int(ErrorCode.INVALID_REQUEST), asked.name or "", asked.topic_id)
        return MetadataResponseTopic(int(ErrorCode.UNKNOWN_TOPIC_ID), None, asked.topic_id)
    name = asked.name or ""
    code = creation_errors.get(name) or absence_code(name)
    return MetadataResponseTopic(int(code), name, is_internal=name in INTERNAL_TOPICS)


def _described(
    topic: Topic, told: ToldReplicas, version: int, partitions_max: int | None
) -> MetadataResponseTopic:
    """Without partitions where there are more than `partitions_max`."""
    partitions = []
    if partitions_max is None or len(topic.partitions) <= partitions_max:
        partitions = [
            _described_partition(topic, index, state, told, version)
            for index, state in enumerate(topic.partitions)
        ]
    return MetadataResponseTopic(0, topic.name, topic.topic_id, topic.name in INTERNAL_TOPICS, partitions)


def _described_partition(
    topic: Topic, index: int, state: PartitionState, told: ToldReplicas, version: int
) -> MetadataResponsePartition:
    leader, replicas, offline, is_out_of_reach, reader = told.of(topic.topic_id, index, state)
    isr = list(state.isr)
    if reader >= 0:
        leader, isr = reader, [one for one in isr if one != reader]
    code = ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE
    if is_out_of_reach and version >= FIRST_WITH_LISTENERS:
        code = ErrorCode.LISTENER_NOT_FOUND  # of which clients tell whoever set the listeners
    return MetadataResponsePartition(
        int(code),
        index,
        leader,
        state.leader_epoch,
        replicas,
        isr,
        offline,
    )


def _sameness(context: RequestContext, request: MetadataRequest) -> tuple[object, ...]:
    """Two requests for all topics that agree in this are answered alike."""
    connection = context.connection
    return (
        context.api_version,
        connection.listener,
        connection.local_host,
        request.include_cluster_authorized_operations,
        request.include_topic_authorized_operations,
    )


def absence_code(name: str) -> ErrorCode:
    """Why there is no topic of that name."""
    return (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if name_fault(name) is None
        else ErrorCode.INVALID_TOPIC_EXCEPTION
    )
