"""OffsetFetch (key 9): a group's positions read back; from version 8 on, those of several groups at once.

Versions 1 to 10. Ignored: `member_id`, `member_epoch`, `require_stable`.

What is shown is durable, so `require_stable` asks for nothing more while there are no transactions. Classic
members may read whatever they claim to be. What a group has is shown as it was at one moment; more than a
chunk of it is copied then, and answered in chunks. Several groups were never promised to be of one moment. A
group that is named again is refused there, and of what more than a chunk names a partition is answered once:
a few bytes would ask for kilobytes each. Not here: what is committed (coordinators/groups/offsets.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Sequence
from typing import Any, TypeVar

from millrace.broker.coordinators.groups.coordinator import GroupCoordinator, GroupShard
from millrace.broker.coordinators.groups.offsets import NO_PARTITIONS, Partitions
from millrace.broker.coordinators.runtime.deferred import DeferredResponse, Outcome, all_of, unchanged
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.requests.repeated import unmet
from millrace.broker.requests.request import RequestContext
from millrace.broker.requests.work import RequestWork
from millrace.protocol.declare import NO_UUID
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from millrace.runtime.scheduling.chunks import in_chunks

R = TypeVar("R")

GROUP_ERROR_VERSION = 2  # before, an error of the group stands at each partition
GROUPS_VERSION = 8
TOPIC_ID_VERSION = 10
PARTITIONS_PER_CHUNK = 1000
GROUP_WEIGHT = 20  # what a group costs beside its partitions, as many of those
TOPICS_PER_CHUNK = 500

Copied = dict[str, Partitions]  # a group's offsets by topic, of one moment


class OffsetFetch:
    def __init__(self, coordinator: GroupCoordinator, cache: MetadataCache) -> None:
        self._coordinator = coordinator
        self._cache = cache

    def handle(
        self, context: RequestContext, request: OffsetFetchRequest
    ) -> OffsetFetchResponse | asyncio.Future[OffsetFetchResponse] | Coroutine[Any, Any, OffsetFetchResponse]:
        version = context.api_version
        groups = _groups(version, request)
        is_named = len(groups) == 1 and groups[0].topics is not None
        if is_named and _weight(groups[0]) <= PARTITIONS_PER_CHUNK:  # no task for what is asked most
            return self._fetch(version, groups[0], lambda found: _response(version, [found]))
        return self._fetch_all(context.work, version, groups)

    async def _fetch_all(
        self, work: RequestWork, version: int, groups: Sequence[OffsetFetchRequestGroup]
    ) -> OffsetFetchResponse:
        """Large groups are answered one after the other, and what loads late is waited for together."""
        async for part in in_chunks(groups, PARTITIONS_PER_CHUNK, work, _weight):
            for group in part:
                self._coordinator.load(group.group_id)
        outcomes: list[Outcome[OffsetFetchResponseGroup]] = []
        met: set[str] = set()
        async for part in in_chunks(groups, PARTITIONS_PER_CHUNK, work, _weight):
            for group in part:
                if group.group_id in met:
                    outcomes.append(_refused(version, group, ErrorCode.INVALID_REQUEST))
                    continue
                met.add(group.group_id)
                is_large = group.topics is None or _weight(group) > PARTITIONS_PER_CHUNK
                outcomes.append(
                    await self._fetch_large(work, version, group)
                    if is_large
                    else self._fetch(version, group, unchanged)
                )
        return _response(version, await all_of(outcomes, work))

    async def _fetch_large(
        self, work: RequestWork, version: int, group: OffsetFetchRequestGroup
    ) -> OffsetFetchResponseGroup:
        """Of a group and partitions that are named, or all that it has."""

        def copy(shard: GroupShard) -> Outcome[Copied | int]:
            deferred: DeferredResponse[Copied | int] = DeferredResponse(unchanged, unchanged)
            topics = shard.machine.offsets.of_group(group.group_id)
            shard.when_durable(deferred, {name: dict(partitions) for name, partitions in topics.items()})
            return deferred.outcome()

        outcome: Outcome[Copied | int] = self._coordinator.ask(group.group_id, copy, unchanged)
        outcomes: list[Copied | int] = await all_of([outcome], work)
        copied = outcomes[0]
        if isinstance(copied, int):
            return _refused(version, group, copied)
        found = OffsetFetchResponseGroup(group.group_id)
        if group.topics is None:
            async for topic, partitions in self._whole(work, version, copied):
                found.topics.append(topic)
                async for indexes in in_chunks(partitions, PARTITIONS_PER_CHUNK, work):
                    topic.partitions += [_found(partitions, index, NO_UUID) for index in indexes]
            return found
        met: dict[Hashable, set[Hashable]] = {}
        async for topics in in_chunks(group.topics or (), PARTITIONS_PER_CHUNK, work, _topic_weight):
            for asked in topics:
                met_of_topic = met.setdefault((asked.topic_id, asked.name), set())
                found.topics.append(await self._some_of_many(work, version, copied, asked, met_of_topic))
        return found

    async def _some_of_many(
        self,
        work: RequestWork,
        version: int,
        copied: Copied,
        asked: OffsetFetchRequestTopics,
        met: set[Hashable],
    ) -> OffsetFetchResponseTopics:
        """Of a topic, those that are not in `met`."""
        found = OffsetFetchResponseTopics(asked.name, asked.topic_id)
        async for indexes in in_chunks(asked.partition_indexes, PARTITIONS_PER_CHUNK, work):
            part = OffsetFetchRequestTopics(asked.name, asked.topic_id, unmet(indexes, met, int))
            some = self._some(version, lambda name: copied.get(name, NO_PARTITIONS), part)
            found.name = some.name
            found.partitions += some.partitions
        return found

    async def _whole(
        self, work: RequestWork, version: int, copied: Copied
    ) -> AsyncIterator[tuple[OffsetFetchResponseTopics, Partitions]]:
        """Topics that have no id by now cannot be said where ids are what is said."""
        topics = self._cache.image.topics
        async for part in in_chunks(copied.items(), TOPICS_PER_CHUNK, work):
            for name, partitions in part:
                topic = topics.by_name(name) if version >= TOPIC_ID_VERSION else None
                if version < TOPIC_ID_VERSION:
                    yield OffsetFetchResponseTopics(name, NO_UUID), partitions
                elif topic is not None:
                    yield OffsetFetchResponseTopics(name, topic.topic_id), partitions

    def _fetch(
        self, version: int, group: OffsetFetchRequestGroup, form: Callable[[OffsetFetchResponseGroup], R]
    ) -> Outcome[R]:
        def fetch(shard: GroupShard) -> Outcome[R]:
            offsets = shard.machine.offsets
            topics = [
                self._some(version, lambda name: offsets.of_topic(group.group_id, name), asked)
                for asked in group.topics or ()
            ]
            deferred = DeferredResponse(form, refuse)
            shard.when_durable(deferred, OffsetFetchResponseGroup(group.group_id, topics))
            return deferred.outcome()

        def refuse(code: int) -> R:
            return form(_refused(version, group, code))

        return self._coordinator.ask(group.group_id, fetch, refuse)

    def _some(
        self, version: int, of_topic: Callable[[str], Partitions], asked: OffsetFetchRequestTopics
    ) -> OffsetFetchResponseTopics:
        name = asked.name
        if version >= TOPIC_ID_VERSION:
            known = self._cache.topic_name(asked.topic_id)
            if known is None:
                return _failed_topic(asked, ErrorCode.UNKNOWN_TOPIC_ID)
            name = known
        partitions = of_topic(name)
        found = [_found(partitions, index, asked.topic_id) for index in asked.partition_indexes]
        return OffsetFetchResponseTopics(name, asked.topic_id, found)

    def refuse(self, request: OffsetFetchRequest, code: int) -> OffsetFetchResponse:
        """For whichever version it was: what the others have is left out."""
        groups = [OffsetFetchResponseGroup(group.group_id, [], int(code)) for group in request.groups]
        old = _refused(1, _old_group(request), code)
        return OffsetFetchResponse(
            topics=[_old_topic(topic) for topic in old.topics], error_code=int(code), groups=groups
        )


def _weight(group: OffsetFetchRequestGroup) -> int:
    """How much is named of a group, in places of partitions."""
    return GROUP_WEIGHT + sum(map(_topic_weight, group.topics or ()))


def _topic_weight(topic: OffsetFetchRequestTopics) -> int:
    return 1 + len(topic.partition_indexes)


def _groups(version: int, request: OffsetFetchRequest) -> list[OffsetFetchRequestGroup]:
    return request.groups if version >= GROUPS_VERSION else [_old_group(request)]


def _old_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = request.topics
    asked = None
    if topics is not None:
        asked = [OffsetFetchRequestTopics(topic.name, NO_UUID, topic.partition_indexes) for topic in topics]
    return OffsetFetchRequestGroup(request.group_id, topics=asked)


def _found(partitions: Partitions, index: int, topic_id: bytes) -> OffsetFetchResponsePartitions:
    """One that was committed for a namesake of the topic, with another id, is not this one's."""
    offset = partitions.get(index)
    if offset is None or (NO_UUID != topic_id != offset.topic_id != NO_UUID):
        return OffsetFetchResponsePartitions(index, -1, -1, "")
    return OffsetFetchResponsePartitions(index, offset.offset, offset.leader_epoch, offset.metadata)


def _failed_topic(asked: OffsetFetchRequestTopics, code: int) -> OffsetFetchResponseTopics:
    partitions = [
        OffsetFetchResponsePartitions(index, -1, -1, "", int(code)) for index in asked.partition_indexes
    ]
    return OffsetFetchResponseTopics(asked.name, asked.topic_id, partitions)


def _refused(version: int, group: OffsetFetchRequestGroup, code: int) -> OffsetFetchResponseGroup:
    """Consumers before 3.9 give up at COORDINATOR_NOT_AVAILABLE here, so they are told the other error that
    makes them look again."""
    if code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
        code = ErrorCode.NOT_COORDINATOR
    if version >= GROUP_ERROR_VERSION:
        return OffsetFetchResponseGroup(group.group_id, [], int(code))
    return OffsetFetchResponseGroup(
        group.group_id, [_failed_topic(asked, code) for asked in group.topics or []]
    )


def _response(version: int, groups: list[OffsetFetchResponseGroup]) -> OffsetFetchResponse:
    if version >= GROUPS_VERSION:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    return OffsetFetchResponse(
        topics=[_old_topic(topic) for topic in group.topics], error_code=group.error_code
    )


def _old_topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    partitions = [
        OffsetFetchResponsePartition(
            found.partition_index,
            found.committed_offset,
            found.committed_leader_epoch,
            found.metadata,
            found.error_code,
        )
        for found in topic.partitions
    ]
    return OffsetFetchResponseTopic(topic.name, partitions)
