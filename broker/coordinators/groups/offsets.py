"""Committed offsets of one shard's groups: what is kept, what has expired. Pure; wall-clock milliseconds come
in as arguments.

Not responsible for who may commit (group.py) nor for durability (state_machine.py applies a record here in
the order of the log). Keeps true: a group, and a topic of a group, is present only while it has an offset;
`live_bytes` is what all of it takes in the log, and what `apply` gives adds up to what it takes in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from millrace.broker.coordinators.groups.group import CONSUMER, Group
from millrace.broker.coordinators.groups.members import GroupState
from millrace.protocol.declare import NO_UUID

# What one record takes in the log beside the names and the client's text: key, value, and their frame; it
# errs upwards.
OFFSET_RECORD_BYTES = 90
# What a committed offset takes in memory beside its text, and the first of a topic in its group beside that.
OFFSET_BYTES = 300
TOPIC_BYTES = 500

# Of a search for offsets of topics that are gone, a step: two or three milliseconds.
LOOKED_PER_CHUNK = 2000
ORPHANS_PER_CHUNK = 300


class CommittedOffset(NamedTuple):
    """`expires_ms` is the explicit retention of old clients, None for the broker's own rule. `leader_epoch`
    -1: not told."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int | None = None
    topic_id: bytes = NO_UUID


OffsetKey = tuple[str, str, int]  # group, topic, partition
Partitions = Mapping[int, CommittedOffset]
NO_PARTITIONS: Partitions = {}
NO_TOPICS: Mapping[str, Partitions] = {}


class CommittedOffsets:
    """By group, topic and partition."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._names: dict[str, str] = {}  # of topics: one text for all groups
        self.count = 0
        self.live_bytes = 0

    def groups(self) -> Iterator[str]:
        return iter(self._groups)

    def of_group(self, group_id: str) -> Mapping[str, Partitions]:
        return self._groups.get(group_id, NO_TOPICS)

    def of_topic(self, group_id: str, topic: str) -> Partitions:
        return self._groups.get(group_id, NO_TOPICS).get(topic, NO_PARTITIONS)

    def growth_bytes(self, group_id: str, topic: str, partition: int, metadata: str) -> int:
        """How much larger such a commit makes what is in memory; below zero: smaller."""
        partitions = self.of_topic(group_id, topic)
        before = partitions.get(partition)
        if before is not None:
            return len(metadata) - len(before.metadata)
        return OFFSET_BYTES + len(metadata) + (0 if partitions else TOPIC_BYTES)

    def count_of(self, group_id: str) -> int:
        return sum(map(len, self.of_group(group_id).values()))

    def size_bytes(self, group_id: str) -> int:
        """What a group's offsets take in memory, more or less."""
        return sum(
            TOPIC_BYTES + sum(OFFSET_BYTES + len(offset.metadata) for offset in partitions.values())
            for partitions in self.of_group(group_id).values()
        )

    def apply(self, group_id: str, topic: str, partition: int, offset: CommittedOffset | None) -> int:
        """Folds in one record of the log; None is its tombstone. Gives how much more memory is taken."""
        if offset is None:
            return self._remove(group_id, topic, partition)
        grown_bytes = self.growth_bytes(group_id, topic, partition, offset.metadata)
        topic = self._names.setdefault(topic, topic)
        partitions = self._groups.setdefault(group_id, {}).setdefault(topic, {})
        before = partitions.get(partition)
        partitions[partition] = offset
        if before is None:
            self.count += 1
            self.live_bytes += OFFSET_RECORD_BYTES + len(group_id) + len(topic) + len(offset.metadata)
        else:
            self.live_bytes += len(offset.metadata) - len(before.metadata)
        return grown_bytes

    def _remove(self, group_id: str, topic: str, partition: int) -> int:
        topics = self._groups.get(group_id)
        partitions = None if topics is None else topics.get(topic)
        before = None if partitions is None else partitions.pop(partition, None)
        if topics is None or before is None:
            return 0
        self.count -= 1
        self.live_bytes -= OFFSET_RECORD_BYTES + len(group_id) + len(topic) + len(before.metadata)
        freed_bytes = OFFSET_BYTES + len(before.metadata)
        if not partitions:
            del topics[topic]
            freed_bytes += TOPIC_BYTES
            if not topics:
                del self._groups[group_id]
        return -freed_bytes

    def orphans(self, topic_id_of: Callable[[str], bytes | None]) -> Iterator[list[OffsetKey]]:
        """Offsets of topics that are gone, as (group, topic, partition), some at a time, possibly none:
        others may change what is kept between two. `topic_id_of` tells the id that a name has now; an offset
        of a namesake with another id is gone, too."""
        keys: list[OffsetKey] = []
        looked = 0
        for group_id in list(self._groups):
            for topic in list(self.of_group(group_id)):
                topic_id = topic_id_of(topic)
                for partition in list(self.of_topic(group_id, topic)):
                    offset = self.of_topic(group_id, topic).get(partition)
                    if offset is not None and (
                        topic_id is None or offset.topic_id not in (NO_UUID, topic_id)
                    ):
                        keys.append((group_id, topic, partition))
                    looked += 1
                    if looked >= LOOKED_PER_CHUNK or len(keys) >= ORPHANS_PER_CHUNK:
                        yield keys
                        keys, looked = [], 0
                        topic_id = topic_id_of(topic)
        yield keys

    def topics(self) -> list[str]:
        """Every topic of any group, once."""
        return list(dict.fromkeys(topic for by_topic in self._groups.values() for topic in by_topic))

    def plan_expiry(self, group: Group, now_ms: int, retention_ms: int) -> list[tuple[str, int]]:
        """What of one group has expired (KIP-211), as (topic, partition).

        A consumer group that is empty keeps its offsets for the retention since it became empty; one that is
        stable keeps those of the topics that it reads; a simple group, which never had members, since each
        commit; other groups with members keep all. Where an offset may expire at all, an explicit retention
        of its own goes first.
        """
        if group.protocol_type is None:
            since_ms = None
        elif group.state is GroupState.EMPTY:
            since_ms = group.state_since_ms
        elif (
            group.protocol_type == CONSUMER
            and group.subscribed is not None
            and group.state is GroupState.STABLE
        ):
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
