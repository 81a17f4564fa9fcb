"""One idempotent producer as a process: `python -m tests.compat.sender CLIENT ADDRESS TOPIC COUNT`.

Sends 0, 1, 2 ... as text to partition 0, some 400 a second, and ends with 0 when all are acknowledged.
"""

from __future__ import annotations

import asyncio
import sys
import time

from tests.patience import PATIENCE_S

PAUSE_S = 0.0025


def with_kafka_python(address: str, topic: str, count: int) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=address,
        enable_idempotence=True,
        delivery_timeout_ms=int(PATIENCE_S * 1000),
        reconnect_backoff_max_ms=500,
    )
    sent = []
    for number in range(count):
        sent.append(producer.send(topic, b"%d" % number, partition=0))
        time.sleep(PAUSE_S)
    for future in sent:
        future.get(PATIENCE_S)
    producer.close()


def with_aiokafka(address: str, topic: str, count: int) -> None:
    asyncio.run(_with_aiokafka(address, topic, count))


async def _with_aiokafka(address: str, topic: str, count: int) -> None:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True) as producer:
        sent = []
        for number in range(count):
            sent.append(await producer.send(topic, b"%d" % number, partition=0))
            await asyncio.sleep(PAUSE_S)
        await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_S)


def with_confluent(address: str, topic: str, count: int) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": address, "enable.idempotence": True, "reconnect.backoff.max.ms": 500}
    )
    errors: list[object] = []
    for number in range(count):
        producer.produce(
            topic, b"%d" % number, partition=0, on_delivery=lambda error, _: error and errors.append(error)
        )
        producer.poll(PAUSE_S)
    left = producer.flush(PATIENCE_S)
    assert not errors, errors[0]
    assert left == 0


SENDERS = {"kafka-python": with_kafka_python, "aiokafka": with_aiokafka, "confluent-kafka": with_confluent}


def main(words: list[str]) -> None:
    client, address, topic, count = words
    SENDERS[client](address, topic, int(count))


if __name__ == "__main__":
    main(sys.argv[1:])
