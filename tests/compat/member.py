"""One member of a consumer group as a process: `python -m tests.compat.member CLIENT ADDRESS TOPIC GROUP
[KEY=VALUE...]`.

Prints `partition offset` for each record, until it is killed. Positions are committed every half second, by
the client itself. Settings are the client's own, and `assignor=NAME` in the Python clients, which want
classes.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Any

SESSION_MS = 6_000
POLL_MS = 10_000
ASSIGNORS = {
    "RangePartitionAssignor": "range",
    "RoundRobinPartitionAssignor": "roundrobin",
    "StickyPartitionAssignor": "sticky.sticky_assignor",
    "CooperativeStickyAssignor": "cooperative_sticky",
}


def show(partition: int, offset: int) -> None:
    sys.stdout.write(f"{partition} {offset}\n")


def with_assignor(package: str, settings: dict[str, str]) -> dict[str, Any]:
    """The settings, numbers as such, with `assignor` as the class that it names, such as
    StickyPartitionAssignor."""
    found: dict[str, Any] = {
        name: int(value) if value.isdigit() else value for name, value in settings.items()
    }
    name = found.pop("assignor", None)
    if name is not None:
        module = import_module(f"{package}.{ASSIGNORS[name]}")
        found["partition_assignment_strategy"] = [getattr(module, name)]
    return found


def with_kafka_python(address: str, topic: str, group: str, settings: dict[str, str]) -> None:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=500,
        auto_commit_interval_ms=500,
        **with_assignor("kafka.coordinator.assignors", settings),
    )
    while True:
        # Not shorter: where a poll's time ends just as a join does, kafka-python 3.0.12 sends no heartbeat
        # again, and is out of the group for ever.
        for records in consumer.poll(POLL_MS).values():
            for record in records:
                show(record.partition, record.offset)
        sys.stdout.flush()


def with_aiokafka(address: str, topic: str, group: str, settings: dict[str, str]) -> None:
    asyncio.run(_with_aiokafka(address, topic, group, settings))


async def _with_aiokafka(address: str, topic: str, group: str, settings: dict[str, str]) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=500,
        auto_commit_interval_ms=500,
        **with_assignor("aiokafka.coordinator.assignors", settings),
    )
    async with consumer:
        while True:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                for record in records:
                    show(record.partition, record.offset)
            sys.stdout.flush()


def with_confluent(address: str, topic: str, group: str, settings: dict[str, str]) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 500,
            "auto.commit.interval.ms": 500,
            **settings,
        }
    )
    consumer.subscribe([topic])
    while True:
        for message in consumer.consume(500, 0.2):
            if message.error() is None:
                show(message.partition(), message.offset())  # type: ignore[arg-type]
        sys.stdout.flush()


MEMBERS = {"kafka-python": with_kafka_python, "aiokafka": with_aiokafka, "confluent-kafka": with_confluent}


def main(words: list[str]) -> None:
    client, address, topic, group, *settings = words
    MEMBERS[client](address, topic, group, dict(word.split("=", 1) for word in settings))


if __name__ == "__main__":
    main(sys.argv[1:])
