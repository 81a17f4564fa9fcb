"""CPU of the broker for a produce request of one batch, where headers are judged and where records are, by
turns in one process.

python -m tests.bench.record_validation [--rounds 5] [--size 16384] [--codec zstd]. Records are of text, as
alike as log lines are; sizes are of the batch before it is compressed, as producers count them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import deque
from pathlib import Path
from random import Random
from statistics import median

from millrace.protocol.batch_build import build_batch
from millrace.protocol.batches import Codec
from millrace.protocol.record_walk import IS_COMPILED
from millrace.protocol.records import Record
from tests.bench.produce_load import AnswerCheck, produce_frame
from tests.live import LiveBroker
from tests.live.client import Client

TOPICS = {"headers": "header", "records": "records"}
SIZES = (4 << 10, 16 << 10, 64 << 10)
RECORD_BYTES = (100, 1024)
IN_FLIGHT = 8
WARM_UP_COUNT = 100
WORDS = [
    "GET",
    "POST",
    "/api/v2/orders",
    "/cart",
    "/health",
    "200",
    "404",
    "503",
    "eu-west-1",
    "user-agent",
    "mozilla/5.0",
    "checkout",
    "latency_ms",
]


def batch_of(size_bytes: int, record_bytes: int, codec: Codec) -> bytes:
    random = Random(size_bytes + record_bytes)
    now_ms = int(time.time() * 1000)
    records = []
    for number in range(max(1, size_bytes // record_bytes)):
        text = f"{now_ms + number} {random.getrandbits(64):016x} "
        while len(text) < record_bytes - 10:
            text += f"{random.choice(WORDS)}={random.randrange(1000)} "
        records.append(Record(None, text[: record_bytes - 10].encode(), now_ms + number))
    return build_batch(records, codec=codec)


def send(client: Client, frame: bytes, count: int) -> None:
    """So many requests, IN_FLIGHT at a time."""
    check = AnswerCheck()
    flying: deque[None] = deque()
    for _ in range(count):
        client.socket.sendall(frame)
        flying.append(None)
        if len(flying) == IN_FLIGHT:
            check.check(client.read_frame())
            flying.popleft()
    while flying:
        check.check(client.read_frame())
        flying.popleft()


def busy_seconds(broker: LiveBroker) -> float:
    """CPU of all threads by now. The kernel's count by ticks is too coarse for some hundred requests."""
    tasks = Path(f"/proc/{broker.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def request_us(broker: LiveBroker, client: Client, frame: bytes, count: int) -> float:
    began = busy_seconds(broker)
    send(client, frame, count)
    return (busy_seconds(broker) - began) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=3000, help="requests a round")
    parser.add_argument("--size", type=int, action="append", help="of a batch, in bytes")
    parser.add_argument("--codec", action="append", choices=[codec.name.lower() for codec in Codec])
    options = parser.parse_args()
    codecs = [codec for codec in Codec if not options.codec or codec.name.lower() in options.codec]
    print(
        f"{'compiled' if IS_COMPILED else 'in Python'}; CPU us a request, medians of {options.rounds} rounds "
        "by turns"
    )
    print("| codec | batch | record | bytes sent | header | records | more |\n|---|---|---|---|---|---|---|")
    with (
        tempfile.TemporaryDirectory() as name,
        LiveBroker(Path(name)) as broker,
        Client(broker.address) as client,
    ):
        for topic, validation in TOPICS.items():
            client.create(topic, record_validation=validation, retention_bytes=64 << 20)
        for codec in codecs:
            for size_bytes in options.size or SIZES:
                for record_bytes in RECORD_BYTES:
                    batch = batch_of(size_bytes, record_bytes, codec)
                    frames = {topic: produce_frame(topic, 0, batch) for topic in TOPICS}
                    found: dict[str, list[float]] = {topic: [] for topic in TOPICS}
                    for frame in frames.values():
                        send(client, frame, WARM_UP_COUNT)
                    for _ in range(options.rounds):
                        for topic, frame in frames.items():
                            found[topic].append(request_us(broker, client, frame, options.count))
                    header, walked = (median(found[topic]) for topic in TOPICS)
                    more = median(b / a - 1 for a, b in zip(found["headers"], found["records"], strict=True))
                    print(
                        f"| {codec.name.lower()} | {size_bytes >> 10} KiB | {record_bytes} | {len(batch)} |"
                        f" {header:.1f} | {walked:.1f} | {more:+.0%} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
