"""Topics and their partitions as the cluster agreed on them.

Not here: who decides (create_topics.py, delete_topics.py, partitions.py), streams. Kept true: names and ids
are each unique, no two names differ in '.' against '_' alone (their metrics would collide), partitions are
numbered from 0 without gaps, and a partition's epochs only grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millrace.kraft.tables.sorted_map import SortedMap, SortedMapEdit
from millrace.protocol.dataclass import dataclass
from millrace.protocol.ids import TopicId
from millrace.protocol.metadata_records import PartitionChangeRecord, PartitionRecord, TopicRecord

OPEN_MAX = 64  # topics being changed; more are closed on the way, so that `done` has little to do


class PartitionState(NamedTuple):
    """Partitions of a topic that are alike share one."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int  # -1: none
    leader_epoch: int
    partition_epoch: int  # raised by every change
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    recovery_state: int = 0
    directories: tuple[bytes, ...] = ()


PartitionRow = tuple[bytes, int, PartitionState]  # topic id and index before it


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    topic_id: TopicId
    partitions: tuple[PartitionState, ...]


@dataclass(frozen=True, slots=True)
class Topics:
    names: SortedMap[str, Topic]
    ids: SortedMap[TopicId, Topic]
    collisions: SortedMap[str, str]  # collision key -> name, of names that have '.' or '_'
    partition_count: int

    def by_name(self, name: str) -> Topic | None:
        return self.names.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self.ids.get(TopicId(topic_id))

    def partition(self, topic_id: bytes, index: int) -> PartitionState | None:
        topic = self.ids.get(TopicId(topic_id))
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def __iter__(self) -> Iterator[Topic]:
        """By name."""
        return self.names.values()

    def __len__(self) -> int:
        return len(self.names)


NO_TOPICS = Topics(SortedMap(), SortedMap(), SortedMap(), 0)


def collision_key(name: str) -> str | None:
    """What `name` must not share with another topic's; None when it has neither '.' nor '_'."""
    return name.replace(".", "_") if "." in name or "_" in name else None


def partition_state(record: PartitionRecord) -> PartitionState:
    return PartitionState(
        tuple(record.replicas),
        tuple(record.isr),
        record.leader,
        record.leader_epoch,
        record.partition_epoch,
        tuple(record.removing_replicas),
        tuple(record.adding_replicas),
        record.leader_recovery_state,
        tuple(record.directories),
    )


class TopicsEdit:
    def __init__(self, origin: Topics) -> None:
        self._names: SortedMapEdit[str, Topic] = origin.names.edit()
        self._ids: SortedMapEdit[TopicId, Topic] = origin.ids.edit()
        self._collisions: SortedMapEdit[str, str] = origin.collisions.edit()
        self._partition_count = origin.partition_count
        self._open: dict[TopicId, tuple[str, list[PartitionState]]] = {}  # topics being changed

    def done(self) -> Topics:
        self._close_open()
        return Topics(self._names.done(), self._ids.done(), self._collisions.done(), self._partition_count)

    def _close_open(self) -> None:
        for topic_id, (name, partitions) in self._open.items():
            topic = Topic(name, topic_id, tuple(partitions))
            self._names[name] = topic
            self._ids[topic_id] = topic
        self._open.clear()

    def apply_topic(self, record: TopicRecord) -> None:
        if len(self._open) >= OPEN_MAX:
            self._close_open()
        self._open[TopicId(record.topic_id)] = record.name, []
        key = collision_key(record.name)
        if key is not None:
            self._collisions[key] = record.name

    def apply_partition(self, record: PartitionRecord) -> None:
        partitions = self._partitions(record.topic_id)
        state = partition_state(record)
        if partitions and partitions[-1] == state:
            state = partitions[-1]
        self._put(partitions, record.partition_id, state)

    def put_partitions(self, rows: Iterable[PartitionRow]) -> None:
        """As records of these, one after the other."""
        topic_id_before, partitions = b"", list[PartitionState]()
        for topic_id, index, state in rows:
            if topic_id != topic_id_before:
                topic_id_before, partitions = topic_id, self._partitions(topic_id)
            self._put(partitions, index, state)

    def _put(self, partitions: list[PartitionState], index: int, state: PartitionState) -> None:
        if 0 <= index < len(partitions):
            partitions[index] = state
            return
        assert index == len(partitions), (index, len(partitions))
        partitions.append(state)
        self._partition_count += 1

    def apply_partition_change(self, record: PartitionChangeRecord) -> None:
        partitions = self._partitions(record.topic_id)
        state = partitions[record.partition_id]
        given = {
            "replicas": record.replicas,
            "isr": record.isr,
            "removing": record.removing_replicas,
            "adding": record.adding_replicas,
            "directories": record.directories,
        }
        changes = {name: tuple(value) for name, value in given.items() if value is not None}
        state = state._replace(**changes, partition_epoch=state.partition_epoch + 1)  # type: ignore[arg-type]
        if record.leader != -2:
            state = state._replace(leader=record.leader, leader_epoch=state.leader_epoch + 1)
        if record.leader_recovery_state != -1:
            state = state._replace(recovery_state=record.leader_recovery_state)
        partitions[record.partition_id] = state

    def remove(self, topic_id: bytes) -> str:
        """Gives the name that was removed."""
        name, partitions = self._open.pop(TopicId(topic_id), ("", []))
        topic = self._ids.pop(TopicId(topic_id))
        if topic is not None:
            name = topic.name
            self._names.pop(name)
            partitions = partitions or list(topic.partitions)
        assert name, topic_id
        key = collision_key(name)
        if key is not None:
            self._collisions.pop(key)
        self._partition_count -= len(partitions)
        return name

    def _partitions(self, topic_id: bytes) -> list[PartitionState]:
        key = TopicId(topic_id)
        if key not in self._open:
            if len(self._open) >= OPEN_MAX:
                self._close_open()
            topic = self._ids[key]
            self._open[key] = topic.name, list(topic.partitions)
        return self._open[key][1]
