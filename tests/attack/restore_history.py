"""A random history of a node as clients know it: what they were told, what they may not know, and how much of
it a node still has.

Steps of a life are drawn from a seed: topics made and deleted, records, deletions of records, commits of
several groups. Objects are compacted meanwhile. A life ends by kill -9 with records on their way: each of
those may be there afterwards or not, and nothing else may.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

from tests.live import LiveBroker
from tests.patience import PATIENCE_S, until

PARTITIONS = 2
GROUPS = ("readers", "writers", "auditors")
VALUE_BYTES_MAX = 400
IN_FLIGHT = 20

Place = tuple[str, int]
Records = dict[Place, list[tuple[int, bytes]]]


class Known:
    """Records by partition and offset, where partitions begin, groups' offsets; and values that were sent and
    never answered."""

    def __init__(self) -> None:
        self.records: dict[Place, dict[int, bytes]] = {}
        self.begins: dict[Place, int] = {}
        self.committed: dict[str, dict[Place, int]] = {group: {} for group in GROUPS}
        self.in_doubt: set[bytes] = set()

    def copy(self) -> Known:
        return deepcopy(self)

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.records})

    def expected(self) -> Records:
        return {
            place: sorted(
                (offset, value) for offset, value in records.items() if offset >= self.begins[place]
            )
            for place, records in self.records.items()
        }

    def forget(self, topic: str) -> None:
        for partition in range(PARTITIONS):
            for table in (self.records, self.begins, *self.committed.values()):
                table.pop((topic, partition), None)


class Life:
    """One process's, from the first client to the kill."""

    def __init__(self, broker: LiveBroker, chance: random.Random, known: Known, name: str) -> None:
        self._broker = broker
        self._chance = chance
        self.known = known
        self._name = name
        self._made = 0
        self._sent = 0
        self._admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        settings = {
            "bootstrap.servers": broker.address,
            "linger.ms": 5,
            "message.timeout.ms": 30_000,
            "log_level": 0,
        }
        self._producer = Producer(settings)

    def run(self, steps: int) -> None:
        """That many steps; the first makes a topic, and each kind that destroys something comes at least
        once."""
        kinds: list[Callable[[], None]] = [self.delete_records, self.delete_topic, self.commit, self.commit]
        drawn = self._chance.choices(
            [self.produce, self.make_topic, *kinds], [6, 1, 1, 1, 2, 2], k=max(0, steps - 8)
        )
        steps_left = [self.produce, self.produce, self.make_topic, *kinds, *drawn]
        self._chance.shuffle(steps_left)
        self.make_topic()
        for step in (self.produce, *steps_left):
            step()

    def make_topic(self) -> None:
        topic = f"{self._name}-{self._made}"
        self._made += 1
        self._admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(PATIENCE_S)
        for partition in range(PARTITIONS):
            self.known.records[topic, partition] = {}
            self.known.begins[topic, partition] = 0

    def delete_topic(self) -> None:
        """Not the last one."""
        topics = self.known.topics()
        if len(topics) > 1:
            topic = self._chance.choice(topics)
            self._admin.delete_topics([topic])[topic].result(PATIENCE_S)
            self.known.forget(topic)

    def delete_records(self) -> None:
        place = self._place()
        end = max(self.known.records[place], default=-1) + 1
        before = self._chance.randrange(self.known.begins[place], end + 1)
        asked = TopicPartition(*place, before)
        self._admin.delete_records([asked])[asked].result(PATIENCE_S)
        self.known.begins[place] = before

    def produce(self) -> None:
        for _ in range(self._chance.randrange(20, 60)):
            self._send()
        assert (
            self._producer.flush(PATIENCE_S) == 0
        )  # what a purge passed over, between two queues, is given up when its time is over

    def commit(self) -> None:
        """Of one group, in one partition or in all of a topic."""
        group, (topic, _) = self._chance.choice(GROUPS), self._place()
        places = [(topic, number) for number in range(self._chance.choice((1, PARTITIONS)))]
        offsets = {
            place: self._chance.randrange(self.known.begins[place], self._end(place) + 1) for place in places
        }
        self._commit(group, offsets)

    def commit_below_records(self) -> None:
        """Of one group, so that its member has something to go on with in each partition that has records."""
        rows = {place: found for place, found in self.known.expected().items() if found}
        self._commit(GROUPS[0], {place: found[len(found) // 2][0] for place, found in rows.items()})

    def _commit(self, group: str, offsets: dict[Place, int]) -> None:
        settings = {"bootstrap.servers": self._broker.address, "group.id": group, "enable.auto.commit": False}
        consumer = Consumer(settings)
        consumer.commit(
            offsets=[TopicPartition(*place, offset) for place, offset in offsets.items()], asynchronous=False
        )
        consumer.close()
        self.known.committed[group] |= offsets

    def _end(self, place: Place) -> int:
        return max([*self.known.records[place], self.known.begins[place] - 1]) + 1

    def _place(self) -> Place:
        return self._chance.choice(sorted(self.known.records))

    def _send(self) -> None:
        topic, partition = self._place()
        self._sent += 1
        value = f"{self._name} {self._sent} ".encode() + self._chance.randbytes(
            self._chance.randrange(VALUE_BYTES_MAX)
        )
        self.known.in_doubt.add(value)
        self._producer.produce(topic, value, partition=partition, on_delivery=self._on_delivery)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            topic, partition, offset, value = (
                message.topic(),
                message.partition(),
                message.offset(),
                message.value(),
            )
            assert topic is not None
            assert partition is not None
            assert offset is not None
            assert isinstance(value, bytes)
            self.known.records[topic, partition][offset] = value
            self.known.in_doubt.discard(value)

    def wait_compacted(self) -> None:
        """Stream-set objects were merged; which streams they hold is not seen."""

        def is_compacted() -> bool:
            self.produce()  # what is merged has to be there first
            return self._broker.metrics()['millrace_compaction_objects_total{direction="in"}'] > 0

        until(is_compacted)

    def kill(self) -> None:
        """While records are on their way."""
        for _ in range(IN_FLIGHT):
            self._send()
        self._producer.poll(0)
        self._broker.kill()
        self._producer.purge()
        self.close()

    def close(self) -> None:
        assert (
            self._producer.flush(PATIENCE_S) == 0
        )  # what a purge passed over, between two queues, is given up when its time is over
        del self._producer, self._admin


def digest(found: Records) -> str:
    total = hashlib.sha256()
    for place in sorted(found):
        total.update(repr((place, found[place])).encode())
    return total.hexdigest()


def check(broker: LiveBroker, known: Known) -> int:
    """Topics, where partitions begin, records by two clients, and groups' offsets; how many records there
    are."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    assert (
        sorted(name for name in admin.list_topics(timeout=PATIENCE_S).topics if not name.startswith("__"))
        == known.topics()
    )
    expected = known.expected()
    for read in (read_by_librdkafka, read_by_kafka_python):
        begins, found = read(broker, known)
        assert begins == known.begins
        certain = {
            place: [one for one in rows if one[1] not in known.in_doubt] for place, rows in found.items()
        }
        assert digest(certain) == digest(expected), read.__name__
    for group, committed in known.committed.items():
        assert committed_of(broker, group, list(committed)) == committed, group
    check_group_goes_on(broker, known)
    return sum(map(len, expected.values()))


def read_by_librdkafka(broker: LiveBroker, known: Known) -> tuple[dict[Place, int], Records]:
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "not joined", "enable.auto.commit": False}
    )
    places = [TopicPartition(*place) for place in known.records]
    bounds = {(one.topic, one.partition): consumer.get_watermark_offsets(one, 20) for one in places}
    found: Records = {place: [] for place in known.records}
    consumer.assign([TopicPartition(*place, low) for place, (low, _) in bounds.items()])
    left = {place for place, (low, high) in bounds.items() if low < high}
    while left:
        for message in consumer.consume(500, 1.0):
            assert message.error() is None, message.error()
            place: Any = (message.topic(), message.partition())
            row: Any = (message.offset(), message.value())
            found[place].append(row)
            if row[0] + 1 == bounds[place][1]:
                left.discard(place)
    consumer.close()
    return {place: low for place, (low, _) in bounds.items()}, found


def read_by_kafka_python(broker: LiveBroker, known: Known) -> tuple[dict[Place, int], Records]:
    consumer = KafkaConsumer(
        bootstrap_servers=broker.address, auto_offset_reset="none", enable_auto_commit=False
    )
    places = [KafkaPythonPartition(*place) for place in known.records]
    found: Records = {place: [] for place in known.records}
    begins, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
    consumer.assign(places)
    for place, begin in begins.items():
        consumer.seek(place, begin)
    while any(consumer.position(place) < end for place, end in ends.items()):
        for place, records in consumer.poll(500).items():
            found[place.topic, place.partition] += [(record.offset, record.value) for record in records]
    consumer.close()
    return {(place.topic, place.partition): begin for place, begin in begins.items()}, found


def committed_of(broker: LiveBroker, group: str, places: list[Place]) -> dict[Place, int]:
    consumer = KafkaConsumer(bootstrap_servers=broker.address, group_id=group, enable_auto_commit=False)
    found = {place: consumer.committed(KafkaPythonPartition(*place)) for place in places}
    consumer.close()
    return found


def check_group_goes_on(broker: LiveBroker, known: Known) -> None:
    """Its member begins in each partition with the first certain record at or behind the group's offset."""
    expected, wanted = known.expected(), {}
    for place, offset in known.committed[GROUPS[0]].items():
        behind = [one for one in expected[place] if one[0] >= offset]
        if behind and offset >= known.begins[place]:
            wanted[place] = behind[0]
    assert wanted
    assert firsts_of_member(broker, GROUPS[0], known, set(wanted)) == wanted


def firsts_of_member(
    broker: LiveBroker, group: str, known: Known, places: set[Place]
) -> dict[Place, tuple[int, bytes]]:
    settings = {"bootstrap.servers": broker.address, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "latest"})
    consumer.subscribe(sorted({topic for topic, _ in places}))
    found: dict[Place, tuple[int, bytes]] = {}
    while not places <= found.keys():
        message: Any = consumer.poll(20)
        assert message is not None, f"nothing comes to a member of {group}: {found}"
        assert message.error() is None, message.error()
        if message.value() not in known.in_doubt:
            found.setdefault((message.topic(), message.partition()), (message.offset(), message.value()))
    consumer.close()
    return {place: found[place] for place in places}
