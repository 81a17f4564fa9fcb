"""Committed offsets of one shard's groups: what is kept, what has expired. Pure; wall-clock milliseconds come in as arguments.

Not responsible for who may commit (groups.py) nor for durability (shard.py applies a record here in the order of the log).
Keeps true: a group, and a topic of a group, is present only while it has an offset; `live_bytes` is what all of it takes in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from millrace.broker.coordinators.groups import CONSUMER, Group
from millrace.broker.coordinators.members import GroupState
from millrace.protocol.declare import NO_UUID

# What one record takes in the log beside the names and the client's text: key, value, and their frame; it errs upwards.
OFFSET_RECORD_BYTES = 90


class CommittedOffset(NamedTuple):
    """`expires_ms` is the explicit retention of old clients, None for the broker's own rule. `leader_epoch` -1: not told."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int | None = None
    topic_id: bytes = NO_UUID


Partitions = Mapping[int, CommittedOffset]
NO_PARTITIONS: Partitions = {}
NO_TOPICS: Mapping[str, Partitions] = {}


class CommittedOffsets:
    """By group, topic and partition."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self.count = 0
        self.live_bytes = 0

    def groups(self) -> Iterator[str]:
        return iter(self._groups)

    def of_group(self, group_id: str) -> Mapping[str, Partitions]:
        return self._groups.get(group_id, NO_TOPICS)

    def of_topic(self, group_id: str, topic: str) -> Partitions:
        return self._groups.get(group_id, NO_TOPICS).get(topic, NO_PARTITIONS)

    def apply(self, group_id: str, topic: str, partition: int, offset: CommittedOffset | None) -> None:
        """Folds in one record of the log; None is its tombstone."""
        if offset is None:
            self._remove(group_id, topic, partition)
            return
        partitions = self._groups.setdefault(group_id, {}).setdefault(topic, {})
        before = partitions.get(partition)
        partitions[partition] = offset
        if before is None:
            self.count += 1
            self.live_bytes += OFFSET_RECORD_BYTES + len(group_id) + len(topic) + len(offset.metadata)
        else:
            self.live_bytes += len(offset.metadata) - len(before.metadata)

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self._groups.get(group_id)
        partitions = None if topics is None else topics.get(topic)
        before = None if partitions is None else partitions.pop(partition, None)
        if topics is None or before is None:
            return
        self.count -= 1
        self.live_bytes -= OFFSET_RECORD_BYTES + len(group_id) + len(topic) + len(before.metadata)
        if not partitions:
            del topics[topic]
            if not topics:
                del self._groups[group_id]

    def plan_topic_removal(self, topics: Iterable[tuple[str, bytes]]) -> list[tuple[str, str, int]]:
        """Offsets of topics (name, id) that are gone: (group, topic, partition). One of a namesake with another id stays."""
        topics = list(topics)
        return [
            (group_id, topic, partition)
            for group_id, by_topic in self._groups.items()
            for topic, topic_id in topics
            for partition, offset in by_topic.get(topic, NO_PARTITIONS).items()
            if offset.topic_id in (NO_UUID, topic_id)
        ]

    def plan_orphan_removal(self, topic_ids: Mapping[str, bytes]) -> list[tuple[str, str, int]]:
        """Offsets of topics that are not among those that exist (name -> id), as (group, topic, partition)."""
        return [
            (group_id, topic, partition)
            for group_id, by_topic in self._groups.items()
            for topic, partitions in by_topic.items()
            for partition, offset in partitions.items()
            if topic not in topic_ids or offset.topic_id not in (NO_UUID, topic_ids[topic])
        ]

    def topics(self) -> list[str]:
        """Every topic of any group, once."""
        return list(dict.fromkeys(topic for by_topic in self._groups.values() for topic in by_topic))

    def plan_expiry(self, group: Group, now_ms: int, retention_ms: int) -> list[tuple[str, int]]:
        """What of one group has expired (KIP-211), as (topic, partition).

        A consumer group that is empty keeps its offsets for the retention since it became empty; one that is stable keeps those of the
        topics that it reads; a simple group, which never had members, since each commit; other groups with members keep all.
        Where an offset may expire at all, an explicit retention of its own goes first.
        """
        if group.protocol_type is None:
            since_ms = None
        elif group.state is GroupState.EMPTY:
            since_ms = group.state_since_ms
        elif group.protocol_type == CONSUMER and group.subscribed is not None and group.state is GroupState.STABLE:
            since_ms = None
        else:
            return []
        return [
            (topic, partition)
            for topic, partitions in self.of_group(group.group_id).items()
            if not group.is_subscribed(topic)
            for partition, offset in partitions.items()
            if _expires_ms(offset, since_ms, retention_ms) <= now_ms
        ]


def _expires_ms(offset: CommittedOffset, since_ms: int | None, retention_ms: int) -> int:
    """`since_ms` None: since the commit."""
    if offset.expires_ms is not None:
        return offset.expires_ms
    return (offset.committed_ms if since_ms is None else since_ms) + retention_ms
