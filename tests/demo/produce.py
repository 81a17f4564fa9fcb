"""One producer process of the demo: `python -m tests.demo.produce CLIENT ADDRESS TOPIC BYTES SHARE SHARES`.

CLIENT is confluent or kafka-python. Prints a progress line a second and ends with `digest COUNT:BYTES:SUM` of what was acknowledged; any error of a
delivery ends it with exit code 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

from tests.demo.dataset import Digest, records

UNFLUSHED_BYTES_MAX = 32 << 20  # kafka-python bounds nothing by itself
Records = Iterator[tuple[bytes, bytes]]


class Progress:
    def __init__(self, name: str, bytes_max: int) -> None:
        self._name = name
        self._bytes_max = bytes_max
        self._started = self._next = time.monotonic()

    def show(self, digest: Digest) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 1
            rate = digest.bytes / max(now - self._started, 0.001) / 1e6
            share = 100 * digest.bytes / self._bytes_max
            print(f"  {self._name}: {share:3.0f} %  {digest.count} records  {rate:.0f} MB/s", flush=True)


def with_confluent(address: str, topic: str, source: Records, progress: Progress) -> Digest:
    from confluent_kafka import KafkaError, Message, Producer

    digest = Digest()
    errors: list[str] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(str(error))

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
        while True:
            try:
                producer.produce(
                    topic, value=value, key=key, headers=[("bytes", str(len(value)).encode())], on_delivery=on_delivery
                )
                break
            except BufferError:
                producer.poll(0.05)
        digest.add(key, value)
        producer.poll(0)
        progress.show(digest)
        if errors:
            raise RuntimeError(errors[0])
    left = producer.flush(300)
    if errors or left:
        raise RuntimeError(errors[0] if errors else f"{left} records were not delivered")
    return digest


def with_kafka_python(address: str, topic: str, source: Records, progress: Progress) -> Digest:
    from kafka import KafkaProducer

    digest = Digest()
    errors: list[BaseException] = []
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
        sent = producer.send(topic, value=value, key=key, headers=[("bytes", str(len(value)).encode())])
        sent.add_errback(errors.append)
        digest.add(key, value)
        progress.show(digest)
        unflushed += len(value)
        if unflushed > UNFLUSHED_BYTES_MAX:
            producer.flush(300)
            unflushed = 0
        if errors:
            raise errors[0]
    producer.flush(300)
    producer.close()
    if errors:
        raise errors[0]
    return digest


CLIENTS: dict[str, Callable[[str, str, Records, Progress], Digest]] = {
    "confluent": with_confluent,
    "kafka-python": with_kafka_python,
}


def main(words: list[str]) -> int:
    client, address, topic, bytes_max, share, shares = words
    source = records(int(bytes_max), int(share), int(shares))
    digest = CLIENTS[client](address, topic, source, Progress(f"{client} -> {topic}", int(bytes_max)))
    print(f"digest {digest}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
