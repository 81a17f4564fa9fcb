"""Kafka's own producer and consumer, in the JVM that takes orders (java/Clients.java)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from tests.compat.jvm import Jvm, kafka_version
from tests.compat.records import MAX_MESSAGE_BYTES, Record


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class Java:
    name = "java"

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    def version(self) -> str:
        return kafka_version()

    def can_send(self, record: Record) -> bool:
        return True

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Record]) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": address,
            "compression.type": codec,
            "max.request.size": 2 * MAX_MESSAGE_BYTES,
            "linger.ms": 5,
        }
        rows = [
            [
                record.partition,
                text(record.key),
                text(record.value),
                [[name, text(value)] for name, value in record.headers],
                record.timestamp,
            ]
            for record in records
        ]
        answer = self._jvm.order(do="produce", topic=topic, settings=settings, records=rows)
        assert len(answer["offsets"]) == len(records)

    def read(self, address: str, topics: Sequence[str]) -> dict[str, list[Record]]:
        settings = {"bootstrap.servers": address, "max.partition.fetch.bytes": MAX_MESSAGE_BYTES}
        found: dict[str, list[Record]] = {topic: [] for topic in topics}
        answer = self._jvm.order(do="read", topics=list(topics), settings=settings)
        for topic, partition, offset, key, value, headers, timestamp in answer["records"]:
            named = tuple((name, data(held)) for name, held in headers)
            found[topic].append(Record(data(key), data(value), named, timestamp, offset, partition))
        return found

    def show(self, record: Record) -> Record:
        return record
