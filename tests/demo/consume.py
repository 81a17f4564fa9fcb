"""One consumer process of the demo: `python -m tests.demo.consume group|beginning ADDRESS TOPIC GROUP`.

`group`: three members of one group (librdkafka), offsets committed, until together they have every record;
one that comes again after a rebalance or a kill has to be the same record. `beginning`: every partition from
offset 0 (kafka-python), each record once and in order, kills or not. Either reads up to the ends that the
broker tells. Ends with `digest COUNT:BYTES:CHAINS`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from tests.demo.digest import mark_of
from tests.demo.reading import Reading

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

    from tests.demo.digest import Headers

Answer = TypeVar("Answer")
PATIENCE_S = 180
NO_TIME = -1  # of a record whose time is not its producer's
MESSAGES_MAX, MEMBERS = 500, 3


class Progress:
    """A line a second; and members of a group share one reading."""

    def __init__(self, name: str, reading: Reading) -> None:
        self.reading = reading
        self._name = name
        self._lock = threading.Lock()
        self._next = time.monotonic()

    def add(self, partition: int, offset: int, mark: bytes, value_bytes: int) -> None:
        with self._lock:
            self.reading.add(partition, offset, mark, value_bytes)
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + 1
                print(
                    f"  {self._name}: {self.reading.digest.count} of {self.reading.total} records", flush=True
                )


def patiently(ask: Callable[[], Answer], failure: type[Exception]) -> Answer:
    """Asks until a broker answers."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except failure:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def ends_of(address: str, topic: str) -> dict[int, int]:
    """Of each partition, where it ends now."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "ends", "reconnect.backoff.max.ms": 500, "log_level": 0}
    )
    try:
        known = patiently(lambda: consumer.list_topics(topic, timeout=10), KafkaException).topics[topic]
        return {number: _end(consumer, TopicPartition(topic, number)) for number in known.partitions}
    finally:
        consumer.close()


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    from confluent_kafka import KafkaException

    start, end = patiently(lambda: consumer.get_watermark_offsets(partition, timeout=10), KafkaException)
    assert start == 0, f"{partition} begins at {start}"
    return int(end)


def read_as_group(address: str, topic: str, group: str, progress: Progress) -> None:
    members = [
        threading.Thread(target=_member, args=(address, topic, group, progress)) for _ in range(MEMBERS)
    ]
    for member in members:
        member.start()
    for member in members:
        member.join()


def _member(address: str, topic: str, group: str, progress: Progress) -> None:
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
    while not progress.reading.is_complete and time.monotonic() < deadline:
        for message in consumer.consume(MESSAGES_MAX, 0.3):
            if message.error() is None:
                deadline = time.monotonic() + PATIENCE_S
                _add(message, progress)
    consumer.close()


def _add(message: Message, progress: Progress) -> None:
    from confluent_kafka import TIMESTAMP_CREATE_TIME

    key, value, partition, offset = message.key(), message.value(), message.partition(), message.offset()
    assert isinstance(key, bytes)
    assert isinstance(value, bytes)
    assert partition is not None
    assert offset is not None
    kind, time_ms = message.timestamp()
    headers = cast("Headers", message.headers() or [])
    mark = mark_of(key, value, time_ms if kind == TIMESTAMP_CREATE_TIME else NO_TIME, headers)
    progress.add(partition, offset, mark, len(value))


def read_from_beginning(address: str, topic: str, group: str, progress: Progress) -> None:
    from kafka import KafkaConsumer, TopicPartition
    from kafka.errors import KafkaError

    def connected() -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=address, enable_auto_commit=False, max_partition_fetch_bytes=4 << 20
        )

    consumer = patiently(connected, KafkaError)
    partitions = [TopicPartition(topic, number) for number in progress.reading.partitions]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    deadline = time.monotonic() + PATIENCE_S
    while not progress.reading.is_complete and time.monotonic() < deadline:
        for found in consumer.poll(500, max_records=2000).values():
            deadline = time.monotonic() + PATIENCE_S
            for record in found:
                time_ms = NO_TIME if record.timestamp_type else record.timestamp
                mark = mark_of(record.key, record.value, time_ms, record.headers)
                progress.add(record.partition, record.offset, mark, len(record.value))
    consumer.close()


def verdict(mode: str, reading: Reading) -> str:
    """What is wrong apart from the digest; nothing is the empty word. A group's members may take over from
    one another in mid-stream, and a killed one's records come again: at least once."""
    found = {"missing": reading.total - reading.digest.count, "changed": reading.changed}
    if mode == "beginning":
        found |= {"repeated": reading.repeats, "out of order": reading.early}
    return ", ".join(f"{count} {what}" for what, count in found.items() if count)


def main(words: list[str]) -> int:
    mode, address, topic, group = words
    reading = Reading(ends_of(address, topic))
    progress = Progress(f"{mode} <- {topic}", reading)
    (read_as_group if mode == "group" else read_from_beginning)(address, topic, group, progress)
    print(f"  {mode} <- {topic}: {reading.repeats} records again", flush=True)
    print(f"digest {reading.digest}", flush=True)
    if wrong := verdict(mode, reading):
        print(f"  {mode} <- {topic}: {wrong}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
