"""OffsetCommit (key 8): a group's positions, acknowledged once they are durable.

Versions 2 to 10. No field is ignored.

Kafka's order of refusals: topics and partitions that there are not, then the group and its member for all the
others, then text that is too long. What memory for states has no place for is refused with
COORDINATOR_LOAD_IN_PROGRESS, which clients try again. Not here: who may commit
(coordinators/groups/group.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any

from millrace.broker.coordinators.groups.coordinator import GroupCoordinator, GroupShard
from millrace.broker.coordinators.groups.offsets import CommittedOffset
from millrace.broker.coordinators.groups.state_machine import Position
from millrace.broker.coordinators.runtime.deferred import DeferredResponse, Outcome, unchanged
from millrace.broker.coordinators.runtime.state_machine import Reply
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.requests.request import RequestContext
from millrace.broker.state_memory import THROTTLE_MS
from millrace.kraft.tables.topics import Topic
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from millrace.runtime.scheduling.chunks import in_chunks

TOPIC_ID_VERSION = 10
NOT_FOUND_VERSION = 9  # earlier clients know GROUP_ID_NOT_FOUND as ILLEGAL_GENERATION
NO_RETENTION = -1
PARTITIONS_PER_CHUNK = 400  # two or three milliseconds
CHUNKS_AHEAD = 2
TIME_MAX_MS = (1 << 63) - 1  # the latest that a record can carry

# What is to be committed of a topic that there is: each asked partition beside its place in the response.
Known = tuple[Topic, list[tuple[OffsetCommitRequestPartition, OffsetCommitResponsePartition]]]


class OffsetCommit:
    def __init__(self, coordinator: GroupCoordinator, cache: MetadataCache) -> None:
        self._coordinator = coordinator
        self._cache = cache

    def handle(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> (
        OffsetCommitResponse
        | asyncio.Future[OffsetCommitResponse]
        | Coroutine[Any, Any, OffsetCommitResponse]
    ):
        if sum(map(_weight, request.topics)) > PARTITIONS_PER_CHUNK:
            return self._commit_in_chunks(context, request)
        return self._begin(context, request)

    async def _commit_in_chunks(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> OffsetCommitResponse:
        """The caller yields between two chunks. Each is judged by the group as it is then: a member that lost
        its place meanwhile commits no more. The next but one waits until a chunk is durable, so that little
        of the request is in the shard's queue at a time."""
        outcomes: deque[Outcome[OffsetCommitResponse]] = deque()
        response = OffsetCommitResponse()
        async for parts in in_chunks(_parts(request), PARTITIONS_PER_CHUNK, context.work, _weight):
            outcomes.append(self._begin(context, replace(request, topics=list(parts))))
            while len(outcomes) >= CHUNKS_AHEAD:
                _join(response, await _answer_of(outcomes.popleft()))
        for outcome in outcomes:
            _join(response, await _answer_of(outcome))
        return response

    def _begin(self, context: RequestContext, request: OffsetCommitRequest) -> Outcome[OffsetCommitResponse]:
        version = context.api_version
        return self._coordinator.ask(
            request.group_id,
            lambda shard: self._commit(shard, version, request, context.connection.peer_host),
            lambda code: self._refuse_known(version, request, code),
        )

    def _refuse_known(self, version: int, request: OffsetCommitRequest, code: int) -> OffsetCommitResponse:
        response = OffsetCommitResponse()
        return _refused(response, self._known(version, request, response), code)

    def _commit(
        self, shard: GroupShard, version: int, request: OffsetCommitRequest, client_host: str
    ) -> Outcome[OffsetCommitResponse]:
        response = OffsetCommitResponse()
        known = self._known(version, request, response)
        if not known:
            return response
        group_id, now = request.group_id, shard.now()
        code = shard.machine.refusal_of_commit(
            group_id, request.member_id, request.group_instance_id, request.generation_id_or_member_epoch, now
        )
        if code:
            is_old = code == ErrorCode.GROUP_ID_NOT_FOUND and version < NOT_FOUND_VERSION
            return _refused(response, known, ErrorCode.ILLEGAL_GENERATION if is_old else code)
        extended = shard.machine.on_session_extended(group_id)
        if extended is not None:
            shard.carry_out(extended)
        asked = self._positions(known, request.retention_time_ms, now.wall_ms)
        positions = [position for position, _ in asked]
        refused = shard.machine.refusal_of_positions(group_id, positions, client_host)
        if any(refused):
            response.throttle_time_ms = THROTTLE_MS
            for (_, answer), is_refused in zip(asked, refused, strict=True):
                if is_refused:
                    answer.error_code = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            positions = [
                position for position, is_refused in zip(positions, refused, strict=True) if not is_refused
            ]
        if not positions:
            return response
        deferred: DeferredResponse[OffsetCommitResponse] = DeferredResponse(
            unchanged, lambda code: _refused(response, known, code)
        )
        decision = shard.machine.commit(group_id, positions, now, client_host, request.member_id)
        decision.deferred.append(Reply(deferred, response))
        shard.carry_out(decision)
        return deferred.outcome()

    def _known(
        self, version: int, request: OffsetCommitRequest, response: OffsetCommitResponse
    ) -> list[Known]:
        """Puts all topics into the response; gives what of them there is."""
        found = (self._look_up(version, topic, response) for topic in request.topics)
        return [one for one in found if one is not None]

    def _look_up(
        self, version: int, topic: OffsetCommitRequestTopic, response: OffsetCommitResponse
    ) -> Known | None:
        """Puts the topic into the response; gives what of it there is."""
        by_id = version >= TOPIC_ID_VERSION
        topics = self._cache.image.topics
        found = topics.by_id(topic.topic_id) if by_id else topics.by_name(topic.name)
        answers = [OffsetCommitResponsePartition(asked.partition_index) for asked in topic.partitions]
        response.topics.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, answers))
        count = 0 if found is None else len(found.partitions)
        missing = (
            ErrorCode.UNKNOWN_TOPIC_ID if by_id and found is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        pairs = []
        for asked, answer in zip(topic.partitions, answers, strict=True):
            if 0 <= asked.partition_index < count:
                pairs.append((asked, answer))
            else:
                answer.error_code = int(missing)
        return None if found is None or not pairs else (found, pairs)

    def _positions(
        self, known: list[Known], retention_ms: int, wall_ms: int
    ) -> list[tuple[Position, OffsetCommitResponsePartition]]:
        """What is to be committed, each beside its place in the response."""
        expires_ms = (
            None if retention_ms == NO_RETENTION else max(0, min(wall_ms + retention_ms, TIME_MAX_MS))
        )
        text_max = self._coordinator.settings.offset_metadata_bytes_max
        positions = []
        for topic, pairs in known:
            for asked, answer in pairs:
                text = asked.committed_metadata or ""
                if (
                    2 * len(text) > text_max and len(text.encode("utf-16-le")) > 2 * text_max
                ):  # Java's characters
                    answer.error_code = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                    continue
                offset = CommittedOffset(
                    asked.committed_offset,
                    asked.committed_leader_epoch,
                    text,
                    wall_ms,
                    expires_ms,
                    topic.topic_id,
                )
                positions.append((Position(topic.name, asked.partition_index, offset), answer))
        return positions

    def refuse(self, request: OffsetCommitRequest, code: int) -> OffsetCommitResponse:
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    topic.name,
                    topic.topic_id,
                    [
                        OffsetCommitResponsePartition(asked.partition_index, int(code))
                        for asked in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )


def _weight(topic: OffsetCommitRequestTopic) -> int:
    return 1 + len(topic.partitions)


def _parts(request: OffsetCommitRequest) -> Iterator[OffsetCommitRequestTopic]:
    """The request's topics, wide ones in several parts."""
    for topic in request.topics:
        for start in range(0, max(1, len(topic.partitions)), PARTITIONS_PER_CHUNK):
            part = topic.partitions[start : start + PARTITIONS_PER_CHUNK]
            yield OffsetCommitRequestTopic(topic.name, topic.topic_id, part)


def _join(response: OffsetCommitResponse, part: OffsetCommitResponse) -> None:
    """Puts the answers of a chunk behind those before; parts of one topic become one again."""
    for topic in part.topics:
        last = response.topics[-1] if response.topics else None
        if last is not None and (last.name, last.topic_id) == (topic.name, topic.topic_id):
            last.partitions += topic.partitions
        else:
            response.topics.append(topic)


async def _answer_of(outcome: Outcome[OffsetCommitResponse]) -> OffsetCommitResponse:
    return await outcome if isinstance(outcome, asyncio.Future) else outcome


def _refused(response: OffsetCommitResponse, known: list[Known], code: int) -> OffsetCommitResponse:
    for _, pairs in known:
        for _, answer in pairs:
            answer.error_code = int(code)
    return response
