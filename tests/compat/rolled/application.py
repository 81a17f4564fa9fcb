"""An application in Python as a process: an idempotent producer, and the members of a group, a thread each.

    python -m tests.compat.rolled.application CLIENT ADDRESSES TOPIC PARTITIONS MEMBERS

The producer sends the next number to every partition twenty times a second, until a line comes on standard
input; the members, of the group that is named as the topic, commit behind every poll, until it ends. CLIENT
is kafka-python, aiokafka or confluent-kafka, as it comes: nothing is set but the addresses, idempotence, who
commits, and where a new group begins. java/Application.java is the same of Java.

Prints a line of JSON each (events.py reads them); times are of the machine's monotonic clock, in seconds:

    ["acked", partition, offset, value, sent at, at]
    ["read", at, [[partition, offset, value]...]]
    ["committed", at, {partition: offset}]
    ["error", at, where, name, text]    what the client told: an exception, a report without an offset
    ["notice", at, name, text]          what librdkafka tells beside that, and calls informational
    ["sent"]                            the producer has flushed, and ended

Not here: retries. What a client gives up is printed, and the application goes on.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

PAUSE_S = 0.05
POLL_S = 2.0  # kafka-python wants seconds (docs/clients.md)
FLUSH_S = 150.0  # longer than any client's own bound of a delivery

SENT = threading.Event()  # nothing more is to be sent
OVER = threading.Event()  # nothing more is to be read
LINES = threading.Lock()


def tell(*event: object) -> None:
    with LINES:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def tell_error(where: str, error: object, name: str = "") -> None:
    tell("error", time.monotonic(), where, name or type(error).__name__, str(error)[:300])


def wait_for_the_end() -> None:
    sys.stdin.readline()
    SENT.set()
    sys.stdin.read()
    OVER.set()


# -- kafka-python


def produce_with_kafka_python(addresses: list[str], topic: str, partitions: int) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=addresses, enable_idempotence=True)
    value = 0

    def send(partition: int, value: int) -> None:
        sent = time.monotonic()

        def on_acknowledged(told: Any) -> None:
            tell("acked", partition, told.offset, value, sent, time.monotonic())

        try:
            future = producer.send(topic, b"%d" % value, partition=partition)
        except Exception as error:
            tell_error("send", error)
            return
        future.add_callback(on_acknowledged)
        future.add_errback(lambda error: tell_error("send", error))

    while not SENT.wait(PAUSE_S):
        for partition in range(partitions):
            send(partition, value)
            value += 1
    producer.flush(FLUSH_S)
    producer.close()


def consume_with_kafka_python(addresses: list[str], topic: str) -> None:
    from kafka import KafkaConsumer
    from kafka.structs import OffsetAndMetadata

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=addresses,
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    while not OVER.is_set():
        try:
            polled = consumer.poll(int(POLL_S * 1000))
        except Exception as error:
            tell_error("poll", error)
            continue
        if not polled:
            continue
        tell_read([each for records in polled.values() for each in records])
        ends = {place: records[-1].offset + 1 for place, records in polled.items()}
        try:
            consumer.commit({place: OffsetAndMetadata(end, "", -1) for place, end in ends.items()})
        except Exception as error:
            tell_error("commit", error)
            continue
        tell_committed({place.partition: end for place, end in ends.items()})
    consumer.close()


def tell_read(records: list[Any]) -> None:
    shown = [[each.partition, each.offset, int(each.value)] for each in records]
    tell("read", time.monotonic(), shown)


def tell_committed(ends: Mapping[int, int]) -> None:
    tell("committed", time.monotonic(), ends)


# -- aiokafka


def produce_with_aiokafka(addresses: list[str], topic: str, partitions: int) -> None:
    asyncio.run(_produce_with_aiokafka(addresses, topic, partitions))


async def _produce_with_aiokafka(addresses: list[str], topic: str, partitions: int) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(bootstrap_servers=addresses, enable_idempotence=True)
    await producer.start()
    value = 0
    waiting: set[asyncio.Future[Any]] = set()

    async def send(partition: int, value: int) -> None:
        sent = time.monotonic()
        try:
            future = await producer.send(topic, b"%d" % value, partition=partition)
        except Exception as error:
            tell_error("send", error)
            return

        def on_done(future: asyncio.Future[Any]) -> None:
            waiting.discard(future)
            error = future.exception()
            if error is not None:
                tell_error("send", error)
            else:
                tell("acked", partition, future.result().offset, value, sent, time.monotonic())

        waiting.add(future)
        future.add_done_callback(on_done)

    while not SENT.is_set():
        for partition in range(partitions):
            await send(partition, value)
            value += 1
        await asyncio.sleep(PAUSE_S)
    if waiting:
        await asyncio.wait(waiting, timeout=FLUSH_S)
    await producer.stop()


def consume_with_aiokafka(addresses: list[str], topic: str) -> None:
    asyncio.run(_consume_with_aiokafka(addresses, topic))


async def _consume_with_aiokafka(addresses: list[str], topic: str) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=addresses,
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    while not OVER.is_set():
        try:
            polled = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
        except Exception as error:
            tell_error("poll", error)
            continue
        if not polled:
            continue
        tell_read([each for records in polled.values() for each in records])
        ends = {place: records[-1].offset + 1 for place, records in polled.items()}
        try:
            await consumer.commit(ends)
        except Exception as error:
            tell_error("commit", error)
            continue
        tell_committed({place.partition: end for place, end in ends.items()})
    await consumer.stop()


# -- confluent-kafka


def on_librdkafka_error(error: Any) -> None:
    tell("notice", time.monotonic(), error.name(), error.str()[:300])


def produce_with_confluent(addresses: list[str], topic: str, partitions: int) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": ",".join(addresses),
            "enable.idempotence": True,
            "error_cb": on_librdkafka_error,
            "log_level": 0,
        }
    )
    value = 0

    def send(partition: int, value: int) -> None:
        sent = time.monotonic()

        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                tell_error("send", error.str(), error.name())
            else:
                tell("acked", partition, message.offset(), value, sent, time.monotonic())

        try:
            producer.produce(topic, b"%d" % value, partition=partition, on_delivery=on_delivery)
        except Exception as error:
            tell_error("send", error)

    while not SENT.is_set():
        for partition in range(partitions):
            send(partition, value)
            value += 1
        due = time.monotonic() + PAUSE_S
        while (left := due - time.monotonic()) > 0:  # a poll ends with the first report
            producer.poll(left)
    producer.flush(FLUSH_S)


def consume_with_confluent(addresses: list[str], topic: str) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(addresses),
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "error_cb": on_librdkafka_error,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    while not OVER.is_set():
        ends: dict[int, int] = {}
        shown = []
        for message in consumer.consume(100, PAUSE_S):
            error, value = message.error(), message.value()
            if error is not None:
                tell_error("poll", error.str(), error.name())
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            assert value is not None
            shown.append([partition, offset, int(value)])
            ends[partition] = offset + 1
        if not shown:
            continue
        tell("read", time.monotonic(), shown)
        places = [TopicPartition(topic, partition, end) for partition, end in ends.items()]
        try:
            answer = consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as failed:
            tell_error("commit", failed.args[0].str(), failed.args[0].name())
            continue
        bad = [place.error for place in answer or () if place.error is not None]
        for error in bad:
            tell_error("commit", error.str(), error.name())
        if not bad:
            tell_committed(ends)
    consumer.close()


PRODUCERS = {
    "kafka-python": produce_with_kafka_python,
    "aiokafka": produce_with_aiokafka,
    "confluent-kafka": produce_with_confluent,
}
MEMBERS = {
    "kafka-python": consume_with_kafka_python,
    "aiokafka": consume_with_aiokafka,
    "confluent-kafka": consume_with_confluent,
}


def produce(client: str, addresses: list[str], topic: str, partitions: int) -> None:
    PRODUCERS[client](addresses, topic, partitions)
    tell("sent")


def main(words: list[str]) -> None:
    client, listed, topic, partitions, members = words
    addresses = listed.split(",")
    threads = [threading.Thread(target=MEMBERS[client], args=(addresses, topic)) for _ in range(int(members))]
    threads.append(threading.Thread(target=produce, args=(client, addresses, topic, int(partitions))))
    for thread in threads:
        thread.start()
    wait_for_the_end()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
