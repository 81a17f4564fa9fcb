"""kill -9 at random moments, of a broker that serves and of one that starts and recovers, under an idempotent
producer: everything acknowledged is there, once, in order, and nothing else.

The kernel keeps what was written, so this proves recovery and not durability; power cuts are tests/sim's. A
short form runs with the suite, `make crash` runs at least 50 kills (MILLRACE_KILLS), at other moments each
time. They are drawn from a seed, which is printed; MILLRACE_SEED gives one.
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.crash.history import History
from tests.live import LiveBroker
from tests.patience import PATIENCE_S

KILLS = int(os.environ.get("MILLRACE_KILLS", "6"))
SEED = int(os.environ.get("MILLRACE_SEED", "20"))
PARTITIONS = 4
TOPIC = "crash"


class Load(threading.Thread):
    """Produces unique values round robin until told to stop, then waits for what is in flight."""

    def __init__(self, address: str, history: History) -> None:
        super().__init__(daemon=True)
        self.history = history
        self.errors: list[str] = []
        self.is_stopping = False
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 1,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "message.timeout.ms": 600_000,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        number = 0
        while not self.is_stopping:
            partition = number % PARTITIONS
            value = b"%d-%d" % (partition, number) + b"." * (number % 700)
            try:
                self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._on_delivery)
            except BufferError:
                self._producer.poll(0.05)
                continue
            self.history.on_sent(partition, value)
            number += 1
            self._producer.poll(0)
            if number % 50 == 0:
                time.sleep(0.005)
        self._producer.flush(PATIENCE_S)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None
        assert partition is not None
        assert offset is not None
        self.history.on_acknowledged(value, (partition, offset))


def read_all(address: str) -> list[tuple[int, int, bytes]]:
    """Every record of the topic, from the beginning to the ends as they are now."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False})
    ends = {}
    for partition in range(PARTITIONS):
        low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=PATIENCE_S)
        assert low == 0
        ends[partition] = high
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    read: list[tuple[int, int, bytes]] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(read) < sum(ends.values()):
        assert time.monotonic() < deadline, f"read {len(read)} of {ends}"
        for message in consumer.consume(5000, 0.5):
            assert message.error() is None, message.error()
            read.append((message.partition(), message.offset(), message.value()))  # type: ignore[arg-type]
    consumer.close()
    return read


def kill_in_start(broker: LiveBroker, chance: random.Random) -> bool:
    """Begins a broker and kills it when it has begun with its data; whether that was before it was ready."""
    broker.begin()
    broker.wait_begun()
    time.sleep(chance.choice((0.0, 0.02, 0.1, 0.3)) * chance.random())
    is_early = not broker.is_ready()
    broker.kill()
    return is_early


def wait_for_more(history: History) -> None:
    """A client comes back late on a busy machine; a kill before that says nothing of what was
    acknowledged."""
    before, deadline = len(history.acknowledged), time.monotonic() + PATIENCE_S
    while len(history.acknowledged) == before:
        assert time.monotonic() < deadline, f"{before} records were acknowledged, and no more"
        time.sleep(0.005)


def test_nothing_acknowledged_is_lost_by_kills(tmp_path: Path) -> None:
    """A producer goes on through kills at random moments; afterwards the log agrees with what it was told,
    also read from objects."""
    print(f"MILLRACE_SEED={SEED} MILLRACE_KILLS={KILLS}")
    chance = random.Random(SEED)
    kills_in_start = ([1, 0, 2] * KILLS)[:KILLS]  # before each start that is waited for
    chance.shuffle(kills_in_start)
    early = 0
    broker = LiveBroker(tmp_path, {"num.partitions": str(PARTITIONS), "s3.wal.upload.interval.ms": "300"})
    history = History()
    with broker:
        load = Load(broker.address, history)
        load.start()
        for count in kills_in_start:
            wait_for_more(history)
            time.sleep(chance.choice((0.02, 0.2, 0.6, 1.2)) * chance.random())
            broker.kill()
            early += sum(kill_in_start(broker, chance) for _ in range(count))
            broker.start()
        wait_for_more(history)
        load.is_stopping = True
        load.join(PATIENCE_S)
        print(
            f"{early} of {sum(kills_in_start)} kills in a start came before it was ready; "
            f"{len(history.acknowledged)} records"
        )
        assert early > 0
        assert not load.errors, load.errors[:5]
        assert len(history.acknowledged) == sum(len(values) for values in history.sent.values())
        assert len(history.acknowledged) > 100 * PARTITIONS
        assert history.findings(read_all(broker.address)) == []
        broker.restart()  # caches are empty now, and the WAL
        assert history.findings(read_all(broker.address)) == []
        assert broker.metrics()['millrace_storage_reads_total{source="objects"}'] > 0
