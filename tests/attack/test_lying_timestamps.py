"""Batches whose headers say something else of their timestamps than their records: kept as long as Apache
Kafka keeps them, and found without holding anybody up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from millrace.protocol.apis import NAMED
from millrace.protocol.batches import Codec
from millrace.protocol.codec import encode_request
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.attack import IS_FULL, SLACK
from tests.attack.bystander import Bystander, produce_one
from tests.live import LiveBroker
from tests.live.client import EARLIEST, VERSION_BY_NAME, Client
from tests.live.stamped import stamped
from tests.patience import PATIENCE_S

ROUNDS_MS = 100
MAX_TIMESTAMP = -3


def test_records_without_a_timestamp_are_kept(tmp_path: Path) -> None:
    """librdkafka that is told -1 writes a largest time of 0: such records age from their append, not from
    1970."""
    with (
        LiveBroker(
            tmp_path, {"log.retention.check.interval.ms": str(ROUNDS_MS)}, wal="64MiB", is_warm=True
        ) as broker,
        Client(broker.address) as client,
    ):
        client.create("untimed")
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5})
        for number in range(100):
            producer.produce("untimed", b"%d" % number, timestamp=-1)
        assert producer.flush(PATIENCE_S) == 0
        time.sleep(10 * ROUNDS_MS / 1000)
        assert client.offset("untimed", EARLIEST) == 0
        assert client.offset("untimed", MAX_TIMESTAMP) == 0
        assert len(client.read("untimed")) == 100
        assert client.fetch([("untimed", 0, 0)])["untimed", 0].records
    print("100 records without a timestamp are all there after 10 rounds of retention")


MINUTE_MS = 60_000
RECORDS_A_BATCH = 60_000
ATTACK_BYTES = (16 << 20) if IS_FULL else (3_200 << 10)
PARTITIONS = 24
ATTACKERS = 8 if IS_FULL else 4
ATTACK_S = 30.0 if IS_FULL else 2.5
OTHERS_S_MAX = 1.0 * SLACK
VERSION = 7


def lookups(topic: str, partitions: int, time_ms: int) -> bytes:
    """A request that asks for that time in all of a topic's partitions."""
    asked = [ListOffsetsPartition(index, -1, time_ms) for index in range(partitions)]
    return encode_request(
        NAMED["ListOffsets"], VERSION, 1, "liar", ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, asked)])
    )


def fill_with_lies(client: Client, now_ms: int) -> int:
    """Batches that claim a record of now, and have none: how many bytes were sent, over all partitions."""
    client.create("lies", PARTITIONS)
    lie = stamped(now_ms - MINUTE_MS, now_ms, [now_ms - MINUTE_MS] * RECORDS_A_BATCH, Codec.ZSTD, None)
    sent = 0
    while sent < ATTACK_BYTES:
        for index in range(PARTITIONS):
            data = [TopicProduceData("lies", partition_data=[PartitionProduceData(index, memoryview(lie))])]
            answer = client.ask("Produce", ProduceRequest(None, -1, 10_000, data), VERSION_BY_NAME)
            assert answer.responses[0].partition_responses[0].error_code == 0
            sent += len(lie)
    return sent


@contextmanager
def attack(broker: LiveBroker, request: bytes) -> Iterator[list[int]]:
    """Several connections ask again and again, a few requests ahead; some are closed half-way. Gives a list
    of answers."""
    is_over, answers = threading.Event(), [0]

    def ask(number: int) -> None:
        while not is_over.is_set():
            with Client(broker.address, 60.0) as client:
                client.socket.settimeout(0.5)
                for _ in range(4):
                    client.socket.sendall(request)
                asked_at = time.monotonic()
                while not is_over.is_set() and (number % 2 or time.monotonic() - asked_at < 0.7):
                    try:
                        client.read_frame()
                    except TimeoutError:
                        continue
                    answers[0] += 1
                    client.socket.sendall(request)

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(ATTACKERS)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        is_over.set()
        for thread in threads:
            thread.join(PATIENCE_S)


def look_up(topic: str, now_ms: int) -> Callable[[Client], object]:
    """A step: the record of now in an honest topic, whose batch has to be looked into."""

    def step(client: Client) -> None:
        asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, now_ms)])])
        answer = client.ask("ListOffsets", asked, VERSION).topics[0].partitions[0]
        assert (answer.error_code, answer.offset) == (0, 1), answer

    return step


def test_lookups_in_batches_that_lie_hold_nobody_up(tmp_path: Path) -> None:
    """Their headers claim a time that none of their records has: each has to be unpacked and walked to find
    that out. Others look up times, and produce, as if nothing was."""
    with LiveBroker(tmp_path, {"message.max.bytes": str(4 << 20)}, wal="256MiB", is_warm=True) as broker:
        with Client(broker.address) as client:
            now_ms = int(time.time() * 1000)
            sent = fill_with_lies(client, now_ms)
            client.create("honest")
            client.produce("honest", [b"before"], time_ms=now_ms - 1000)
            client.produce("honest", [b"now"], time_ms=now_ms)
            client.create("busy")
        with (
            Bystander(broker, look_up("honest", now_ms)) as reader,
            Bystander(broker, produce_one("busy")) as writer,
        ):
            with attack(broker, lookups("lies", PARTITIONS, now_ms)) as answers:
                time.sleep(ATTACK_S)
                for one in (reader, writer):
                    one.sees_answers()
            slowest = reader.slowest_s, writer.slowest_s
        print(
            f"{sent / 1e6:.1f} MB of batches that lie, {ATTACKERS} connections: {answers[0]} answers to "
            "them; others' "
            f"slowest lookup {slowest[0]:.3f} s of {len(reader.latencies_s)}, produce {slowest[1]:.3f} s; "
            f"{reader.peak_memory_bytes / (1 << 20):.0f} MiB"
        )
        assert max(slowest) < OTHERS_S_MAX
        with Client(broker.address) as client:
            client.socket.sendall(lookups("lies", PARTITIONS, now_ms))
            began = time.monotonic()
            client.read_frame()
            print(f"all of it once more: {time.monotonic() - began:.3f} s")
