"""OffsetCommit (key 8): a group's positions, acknowledged once they are durable.

Kafka's order of refusals: topics and partitions that there are not, then the group and its member for all the others, then text
that is too long. Not here: who may commit (coordinators/groups.py).
"""

from __future__ import annotations

import asyncio

from millrace.broker.coordinators.coordinator import GroupCoordinator
from millrace.broker.coordinators.members import GroupState
from millrace.broker.coordinators.offsets import CommittedOffset
from millrace.broker.coordinators.shard import Position
from millrace.broker.coordinators.shard_loop import Outcome, ShardLoop
from millrace.broker.coordinators.tickets import Ticket, as_it_is
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.request import RequestContext
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

TOPIC_ID_VERSION = 10
NOT_FOUND_VERSION = 9  # earlier clients know GROUP_ID_NOT_FOUND as ILLEGAL_GENERATION
NO_RETENTION = -1
TIME_MAX_MS = (1 << 63) - 1  # the latest that a record can carry

# What is to be committed of a topic that there is: each asked partition beside its place in the response.
Known = tuple[Topic, list[tuple[OffsetCommitRequestPartition, OffsetCommitResponsePartition]]]


class OffsetCommit:
    def __init__(self, coordinator: GroupCoordinator, cache: MetadataCache) -> None:
        self._coordinator = coordinator
        self._cache = cache

    def handle(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse]:
        version = context.api_version
        return self._coordinator.ask(
            request.group_id,
            lambda shard: self._commit(shard, version, request),
            lambda code: self.refuse(request, code),
        )

    def _commit(self, shard: ShardLoop, version: int, request: OffsetCommitRequest) -> Outcome[OffsetCommitResponse]:
        response = OffsetCommitResponse()
        known = [found for topic in request.topics if (found := self._look_up(version, topic, response)) is not None]
        if not known:
            return response
        group_id, now = request.group_id, shard.now()
        code = shard.shard.refusal_of_commit(
            group_id, request.member_id, request.group_instance_id, request.generation_id_or_member_epoch, now
        )
        if code:
            is_old = code == ErrorCode.GROUP_ID_NOT_FOUND and version < NOT_FOUND_VERSION
            return _refused(response, known, ErrorCode.ILLEGAL_GENERATION if is_old else code)
        group = shard.shard.groups.get(group_id)
        if group is not None and group.state is GroupState.PREPARING:
            shard.retime(
                group
            )  # a session was extended; one that waits to join for the first time had longer until now
        positions = self._positions(known, request.retention_time_ms, now.wall_ms)
        if not positions:
            return response
        ticket: Ticket[OffsetCommitResponse] = Ticket(as_it_is, lambda code: _refused(response, known, code))
        records = shard.shard.commit(group_id, positions, now).records
        shard.append_commit(group_id, request.member_id, records, [(ticket, response)])
        return ticket.outcome()

    def _look_up(self, version: int, topic: OffsetCommitRequestTopic, response: OffsetCommitResponse) -> Known | None:
        """Puts the topic into the response; gives what of it there is."""
        by_id = version >= TOPIC_ID_VERSION
        topics = self._cache.image.topics
        found = topics.by_id(topic.topic_id) if by_id else topics.by_name(topic.name)
        answers = [OffsetCommitResponsePartition(asked.partition_index) for asked in topic.partitions]
        response.topics.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, answers))
        count = 0 if found is None else len(found.partitions)
        missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id and found is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        pairs = []
        for asked, answer in zip(topic.partitions, answers, strict=True):
            if 0 <= asked.partition_index < count:
                pairs.append((asked, answer))
            else:
                answer.error_code = int(missing)
        return None if found is None or not pairs else (found, pairs)

    def _positions(self, known: list[Known], retention_ms: int, wall_ms: int) -> list[Position]:
        expires_ms = None if retention_ms == NO_RETENTION else max(0, min(wall_ms + retention_ms, TIME_MAX_MS))
        text_max = self._coordinator.settings.offset_metadata_bytes_max
        positions = []
        for topic, pairs in known:
            for asked, answer in pairs:
                text = asked.committed_metadata or ""
                if 2 * len(text) > text_max and len(text.encode("utf-16-le")) > 2 * text_max:  # Java's characters
                    answer.error_code = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
                    continue
                offset = CommittedOffset(
                    asked.committed_offset, asked.committed_leader_epoch, text, wall_ms, expires_ms, topic.topic_id
                )
                positions.append(Position(topic.name, asked.partition_index, offset))
        return positions

    def refuse(self, request: OffsetCommitRequest, code: int) -> OffsetCommitResponse:
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    topic.name,
                    topic.topic_id,
                    [OffsetCommitResponsePartition(asked.partition_index, int(code)) for asked in topic.partitions],
                )
                for topic in request.topics
            ]
        )


def _refused(response: OffsetCommitResponse, known: list[Known], code: int) -> OffsetCommitResponse:
    for _, pairs in known:
        for _, answer in pairs:
            answer.error_code = int(code)
    return response
