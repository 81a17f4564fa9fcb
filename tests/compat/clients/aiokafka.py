"""aiokafka: asyncio, versions of before the flexible ones, classic groups. It refuses to send a record of
neither key nor value."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.compat.records import MAX_MESSAGE_BYTES, Record


class AioKafka:
    name = "aiokafka"

    def version(self) -> str:
        import aiokafka

        return str(aiokafka.__version__)

    def can_send(self, record: Record) -> bool:
        return record.key is not None or record.value is not None

    def produce(self, address: str, topic: str, codec: str, records: Sequence[Record]) -> None:
        asyncio.run(self._produce(address, topic, codec, records))

    async def _produce(self, address: str, topic: str, codec: str, records: Sequence[Record]) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            max_request_size=2 * MAX_MESSAGE_BYTES,
            linger_ms=5,
            enable_idempotence=True,
        )
        async with producer:
            sent = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp,
                )
                for record in records
            ]
            await asyncio.gather(*sent)

    def read(self, address: str, topics: Sequence[str]) -> dict[str, list[Record]]:
        return asyncio.run(self._read(address, topics))

    async def _read(self, address: str, topics: Sequence[str]) -> dict[str, list[Record]]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        found: dict[str, list[Record]] = {topic: [] for topic in topics}
        consumer = AIOKafkaConsumer(
            *topics,
            bootstrap_servers=address,
            enable_auto_commit=False,
            # a seek to the beginning can be undone by an earlier look for the latest under way
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=MAX_MESSAGE_BYTES,
        )
        async with consumer:
            partitions = [
                TopicPartition(topic, n) for topic in topics for n in consumer.partitions_for_topic(topic)
            ]
            ends = await consumer.end_offsets(partitions)
            while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
                for records in (await consumer.getmany(timeout_ms=500)).values():
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
        return found

    def show(self, record: Record) -> Record:
        return record
