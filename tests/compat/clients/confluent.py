"""confluent-kafka, and so librdkafka of today."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.compat.records import MAX_MESSAGE_BYTES, Record
from tests.patience import PATIENCE_S


class Confluent:
    name = "confluent-kafka"

    def version(self) -> str:
        import confluent_kafka

        return f"{confluent_kafka.version()} (librdkafka {confluent_kafka.libversion()[0]})"

    def can_send(self, record: Record) -> bool:
        return True

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Record]) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": address,
                "compression.type": codec,
                "message.max.bytes": 2 * MAX_MESSAGE_BYTES,
                "enable.idempotence": True,
                "linger.ms": 5,
            }
        )
        errors: list[Any] = []
        for record in records:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                timestamp=record.timestamp or 0,  # 0: now
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
        assert producer.flush(PATIENCE_S) == 0
        assert not errors, errors[0]

    def read(self, address: str, topics: Sequence[str]) -> dict[str, list[Record]]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "not joined",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": MAX_MESSAGE_BYTES,
            }
        )
        found: dict[str, list[Record]] = {topic: [] for topic in topics}
        ends = {}
        for topic in topics:
            for number in consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions:
                _, ends[topic, number] = consumer.get_watermark_offsets(
                    TopicPartition(topic, number), timeout=PATIENCE_S
                )
        consumer.assign([TopicPartition(topic, number, 0) for topic, number in ends])
        missing = sum(ends.values())
        while missing:
            for each in consumer.consume(1000, 0.5):
                assert each.error() is None, each.error()
                missing -= 1
                headers = tuple(each.headers() or ())
                found[each.topic()].append(
                    Record(
                        each.key(),
                        each.value(),
                        headers,
                        each.timestamp()[1],
                        each.offset(),
                        each.partition(),
                    )
                )
        consumer.close()
        return found

    def show(self, record: Record) -> Record:
        return record
