"""kafka-python: pure Python, classic groups. It refuses to send a record of neither key nor value, and a
header without a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.compat.records import MAX_MESSAGE_BYTES, Record
from tests.patience import PATIENCE_S


class KafkaPython:
    name = "kafka-python"

    def __init__(self, **settings: Any) -> None:
        self._settings = settings  # api_version, to speak as to an older broker

    def version(self) -> str:
        import kafka

        return str(kafka.__version__)

    def can_send(self, record: Record) -> bool:
        has_header_values = all(value is not None for _, value in record.headers)
        return has_header_values and (record.key is not None or record.value is not None)

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Record]) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            max_request_size=2 * MAX_MESSAGE_BYTES,
            linger_ms=5,
            **self._settings,
        )
        sent = [
            producer.send(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp,
            )
            for record in records
        ]
        producer.flush(PATIENCE_S)
        for future in sent:
            future.get(30)
        producer.close()

    def read(self, address: str, topics: Sequence[str]) -> dict[str, list[Record]]:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=address,
            enable_auto_commit=False,
            # a seek to the beginning can be undone by an earlier look for the latest under way
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=MAX_MESSAGE_BYTES,
            **self._settings,
        )
        partitions = [
            TopicPartition(topic, number)
            for topic in topics
            for number in sorted(consumer.partitions_for_topic(topic))
        ]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found: dict[str, list[Record]] = {topic: [] for topic in topics}
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for records in consumer.poll(500, max_records=5000).values():
                for each in records:
                    found[each.topic].append(
                        Record(
                            each.key,
                            each.value,
                            tuple(each.headers),
                            each.timestamp,
                            each.offset,
                            each.partition,
                        )
                    )
        consumer.close()
        return found

    def show(self, record: Record) -> Record:
        return record
