"""Consumers of each client that read one partition to an offset, are left alone for a while, and read on:
what they get, and what they are told.

Each is assigned partition 0 and begins at the first offset. What a consumer does by itself when its position
is not in the log any more is its client's `auto.offset.reset`: "earliest", or "none" (librdkafka's "error"),
with which it has to tell.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.compat.jvm import Jvm
from tests.patience import PATIENCE_S


@dataclass
class Read:
    """Values by offset, in the order in which they came, and the name of the error that ended the reading, if
    one did."""

    records: list[tuple[int, bytes]] = field(default_factory=list)
    error: str = ""

    def offsets(self) -> list[int]:
        return [offset for offset, _ in self.records]


class Follower(Protocol):
    def follow(self, end: int) -> Read:
        """What comes until the consumer stands at `end`, or an error is told."""
        ...

    def close(self) -> None: ...


def _poll_until(poll: Callable[[Read], bool], read: Read) -> Read:
    """Calls `poll` until it says that the reading is at its end."""
    deadline = time.monotonic() + PATIENCE_S
    while not poll(read):
        assert time.monotonic() < deadline, read
    return read


class KafkaPythonFollower:
    def __init__(self, address: str, topic: str, reset: str) -> None:
        from kafka import KafkaConsumer, TopicPartition

        self._place = TopicPartition(topic, 0)
        self._consumer = KafkaConsumer(
            bootstrap_servers=address, auto_offset_reset=reset, enable_auto_commit=False
        )
        self._consumer.assign([self._place])
        self._consumer.seek(self._place, 0)

    def follow(self, end: int) -> Read:
        from kafka.errors import KafkaError

        def poll(read: Read) -> bool:
            try:
                for records in self._consumer.poll(500).values():
                    read.records += [(record.offset, record.value) for record in records]
            except KafkaError as error:
                read.error = type(error).__name__
                return True
            return read.offsets()[-1:] == [end - 1]

        return _poll_until(poll, Read())

    def close(self) -> None:
        self._consumer.close()


class AioKafkaFollower:
    """Its loop stands still between two readings."""

    def __init__(self, address: str, topic: str, reset: str) -> None:
        from aiokafka import TopicPartition

        self._place = TopicPartition(topic, 0)
        self._runner = asyncio.Runner()
        self._runner.run(self._open(address, reset))

    async def _open(self, address: str, reset: str) -> None:
        from aiokafka import AIOKafkaConsumer

        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=address, auto_offset_reset=reset, enable_auto_commit=False
        )
        await self._consumer.start()
        self._consumer.assign([self._place])
        self._consumer.seek(self._place, 0)

    def follow(self, end: int) -> Read:
        return self._runner.run(asyncio.wait_for(self._follow(end), PATIENCE_S))

    async def _follow(self, end: int) -> Read:
        from aiokafka.errors import KafkaError

        read = Read()
        while read.offsets()[-1:] != [end - 1]:
            try:
                for records in (await self._consumer.getmany(timeout_ms=500)).values():
                    read.records += [(record.offset, record.value) for record in records]
            except KafkaError as error:
                read.error = type(error).__name__
                return read
        return read

    def close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()


class ConfluentFollower:
    def __init__(self, address: str, topic: str, reset: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "not joined",
                "auto.offset.reset": "error" if reset == "none" else reset,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def follow(self, end: int) -> Read:
        from confluent_kafka import KafkaError

        passing = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)

        def poll(read: Read) -> bool:
            message = self._consumer.poll(0.5)
            if message is None or ((error := message.error()) is not None and error.code() in passing):
                return False
            if error is not None:
                read.error = f"{error.name()}: {error.str()}"
                return True
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert isinstance(value, bytes)
            read.records.append((offset, value))
            return offset == end - 1

        return _poll_until(poll, Read())

    def close(self) -> None:
        self._consumer.close()


class JavaFollower:
    def __init__(self, jvm: Jvm, address: str, topic: str, reset: str) -> None:
        self._jvm = jvm
        self._name = f"{topic} {reset}"
        settings: dict[str, Any] = {"bootstrap.servers": address, "auto.offset.reset": reset}
        jvm.order(do="open", name=self._name, topic=topic, settings=settings)

    def follow(self, end: int) -> Read:
        answer = self._jvm.order(do="follow", name=self._name, end=end, patience=int(PATIENCE_S * 1000))
        records = [(int(offset), str(value).encode()) for offset, value in answer["records"]]
        return Read(records, answer["thrown"])

    def close(self) -> None:
        self._jvm.order(do="close", name=self._name)
