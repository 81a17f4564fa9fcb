"""One producer process of the demo: `python -m tests.demo.produce CLIENT ADDRESS TOPIC BYTES SHARE SHARES`.

CLIENT is confluent or kafka-python. Prints a progress line a second and ends with `digest COUNT:BYTES:CHAINS`
of what was acknowledged; any error of a delivery ends it with exit code 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.demo.dataset import records
from tests.demo.sending import Sending

UNFLUSHED_BYTES_MAX = 32 << 20  # kafka-python bounds nothing by itself
Records = Iterator[tuple[bytes, bytes]]


class Progress:
    def __init__(self, name: str, bytes_max: int) -> None:
        self._name = name
        self._bytes_max = bytes_max
        self._started = self._next = time.monotonic()

    def show(self, sent_bytes: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 1
            rate = sent_bytes / max(now - self._started, 0.001) / 1e6
            print(f"  {self._name}: {100 * sent_bytes / self._bytes_max:3.0f} %  {rate:.0f} MB/s", flush=True)


def with_confluent(address: str, topic: str, source: Records, sending: Sending, progress: Progress) -> None:
    from confluent_kafka import KafkaError, Message, Producer

    def on_delivery(number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            sending.errors.append(str(error))
        else:
            partition = message.partition()
            assert partition is not None
            sending.on_acknowledged(number, partition, message.offset())

    settings: dict[str, object] = {
        "bootstrap.servers": address,
        "enable.idempotence": True,
        "linger.ms": 5,
        "compression.type": "lz4",
        "message.timeout.ms": 300_000,
        "queue.buffering.max.kbytes": 65_536,
        "reconnect.backoff.max.ms": 500,
        "log_level": 0,
    }
    producer = Producer(settings)
    for key, value in source:
        number, time_ms, headers = sending.begin(key, value)
        told = partial(on_delivery, number)
        while True:
            try:
                producer.produce(
                    topic, value=value, key=key, headers=headers, timestamp=time_ms, on_delivery=told
                )  # type: ignore[arg-type]
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
        progress.show(sending.sent_bytes)
        sending.check()
    producer.flush(300)


def with_kafka_python(
    address: str, topic: str, source: Records, sending: Sending, progress: Progress
) -> None:
    from kafka import KafkaProducer

    def on_delivery(number: int, told: Any) -> None:
        sending.on_acknowledged(number, told.partition, told.offset)

    unflushed = 0
    producer = KafkaProducer(
        bootstrap_servers=address,
        enable_idempotence=True,
        linger_ms=5,
        batch_size=262_144,
        max_request_size=2_000_000,
        delivery_timeout_ms=300_000,
        reconnect_backoff_max_ms=500,
    )
    for key, value in source:
        number, time_ms, headers = sending.begin(key, value)
        sent = producer.send(topic, value=value, key=key, headers=headers, timestamp_ms=time_ms)
        sent.add_callback(on_delivery, number)
        sent.add_errback(lambda error: sending.errors.append(repr(error)))
        progress.show(sending.sent_bytes)
        unflushed += len(value)
        if unflushed > UNFLUSHED_BYTES_MAX:
            producer.flush(300)
            unflushed = 0
        sending.check()
    producer.flush(300)
    producer.close()


CLIENTS: dict[str, Callable[[str, str, Records, Sending, Progress], None]] = {
    "confluent": with_confluent,
    "kafka-python": with_kafka_python,
}


def main(words: list[str]) -> int:
    client, address, topic, bytes_max, share, shares = words
    source = records(int(bytes_max), int(share), int(shares))
    sending = Sending()
    CLIENTS[client](address, topic, source, sending, Progress(f"{client} -> {topic}", int(bytes_max)))
    sending.check_ended()
    print(f"digest {sending.digest}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
