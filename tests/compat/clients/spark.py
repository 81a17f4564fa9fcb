"""Spark's Kafka connector, batch write and batch read, in the session that all tests share. It sends no
timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.compat.records import MAX_MESSAGE_BYTES, Record


class Spark:
    name = "spark"

    def __init__(self, session: Any) -> None:
        self._session = session

    def version(self) -> str:
        clients = self._session.sparkContext._jvm.org.apache.kafka.common.utils.AppInfoParser.getVersion()
        return f"{self._session.version} (kafka-clients {clients})"

    def can_send(self, record: Record) -> bool:
        return record.timestamp is None

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Record]) -> None:
        rows = [
            (
                None if record.key is None else bytearray(record.key),
                None if record.value is None else bytearray(record.value),
                [(name, None if value is None else bytearray(value)) for name, value in record.headers]
                or None,
                record.partition,
            )
            for record in records
        ]
        schema = "key binary, value binary, headers array<struct<key: string, value: binary>>, partition int"
        (
            self._session.createDataFrame(rows, schema)
            .coalesce(1)
            .write.format("kafka")
            .option("kafka.bootstrap.servers", address)
            .option("kafka.compression.type", codec)
            .option("kafka.max.request.size", 2 * MAX_MESSAGE_BYTES)
            .option("includeHeaders", "true")
            .option("topic", topic)
            .save()
        )

    def read(self, address: str, topics: Sequence[str]) -> dict[str, list[Record]]:
        frame = (
            self._session.read.format("kafka")
            .option("kafka.bootstrap.servers", address)
            .option("kafka.max.partition.fetch.bytes", MAX_MESSAGE_BYTES)
            .option("includeHeaders", "true")
            .option("subscribe", ",".join(topics))
            .load()
            .selectExpr(
                "topic", "partition", "offset", "key", "value", "headers", "unix_millis(timestamp) as time"
            )
        )
        found: dict[str, list[Record]] = {topic: [] for topic in topics}
        for row in sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset)):
            headers = tuple((header.key, held(header.value)) for header in row.headers or ())
            found[row.topic].append(
                Record(held(row.key), held(row.value), headers, row.time, row.offset, row.partition)
            )
        return found

    def show(self, record: Record) -> Record:
        return record


def held(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)
