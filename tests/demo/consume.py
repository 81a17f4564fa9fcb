"""One consumer process of the demo: `python -m tests.demo.consume group|beginning ADDRESS TOPIC GROUP COUNT`.

`group`: three members of one group (librdkafka), read until the group has COUNT distinct records, offsets committed. `beginning`: every
partition from offset 0 (kafka-python). Ends with `digest COUNT:BYTES:SUM` over distinct (partition, offset).
"""

from __future__ import annotations

import sys
import threading
import time

from tests.demo.dataset import Digest

PATIENCE_S = 180


class Seen:
    """Records by place: what a group delivers twice after a rebalance counts once."""

    def __init__(self, name: str, count: int) -> None:
        self.digest = Digest()
        self.repeats = 0
        self.count = count
        self._name = name
        self._places: set[tuple[int, int]] = set()
        self._lock = threading.Lock()
        self._next = time.monotonic()

    @property
    def is_complete(self) -> bool:
        return self.digest.count >= self.count

    def add(self, partition: int, offset: int, key: bytes, value: bytes) -> None:
        with self._lock:
            if (partition, offset) in self._places:
                self.repeats += 1
                return
            self._places.add((partition, offset))
            self.digest.add(key, value)
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + 1
                print(f"  {self._name}: {self.digest.count} of {self.count} records", flush=True)


def read_as_group(address: str, topic: str, group: str, seen: Seen) -> None:
    members = [threading.Thread(target=_member, args=(address, topic, group, seen)) for _ in range(3)]
    for member in members:
        member.start()
    for member in members:
        member.join()


def _member(address: str, topic: str, group: str, seen: Seen) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 500,
            "session.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + PATIENCE_S
    while not seen.is_complete and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.3):
            if message.error() is None:
                deadline = time.monotonic() + PATIENCE_S
                seen.add(message.partition(), message.offset(), message.key(), message.value())  # type: ignore[arg-type]
    consumer.close()


def read_from_beginning(address: str, topic: str, group: str, seen: Seen) -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False, max_partition_fetch_bytes=4 << 20)
    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    deadline = time.monotonic() + PATIENCE_S
    while not seen.is_complete and time.monotonic() < deadline:
        for found in consumer.poll(500, max_records=2000).values():
            deadline = time.monotonic() + PATIENCE_S
            for record in found:
                seen.add(record.partition, record.offset, record.key, record.value)
    consumer.close()


def main(words: list[str]) -> int:
    mode, address, topic, group, count = words
    seen = Seen(f"{mode} <- {topic}", int(count))
    (read_as_group if mode == "group" else read_from_beginning)(address, topic, group, seen)
    print(f"repeats {seen.repeats}", flush=True)
    print(f"digest {seen.digest}", flush=True)
    return 0 if seen.is_complete else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
