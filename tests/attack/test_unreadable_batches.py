"""Batches that no consumer can read, sent to a topic that others read, and small ones that unpack to a lot:
what others see of them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from millrace.protocol.apis import NAMED
from millrace.protocol.batches import Codec
from millrace.protocol.codec import encode_request
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.attack import IS_FULL, SLACK
from tests.attack.bystander import Bystander, produce_one
from tests.attack.test_claimed_counts import run_of_zeros
from tests.compat.jvm import java_command
from tests.live import LiveBroker
from tests.live.client import VERSION_BY_NAME, Client
from tests.live.odd_batches import batch_of, odd_batches, readable_batches, send_batch
from tests.patience import PATIENCE_S

RECORDS = {"record.validation": "records"}
BOMB_COUNT = 600 if IS_FULL else 60
BOMB_RECORDS = 15 << 20  # of seven bytes: as much as is ever unpacked
SLOWEST_S = 2.0 * SLACK
STILL_MS = 60_000
MIB = 1 << 20


def read_by_java(broker: LiveBroker, topic: str, count: int) -> list[str]:
    """What Kafka's own consumer reads, until it has so many values or stands still for long."""
    words = ["--bootstrap-server", broker.address, "--topic", topic, "--from-beginning"]
    command = java_command("org.apache.kafka.tools.consumer.ConsoleConsumer", *words)
    done = subprocess.run(
        [*command, "--max-messages", str(count), "--timeout-ms", str(STILL_MS)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return done.stdout.splitlines()


def test_no_broken_batch_stands_before_a_reader(tmp_path: Path) -> None:
    """Records, and between any two of them a batch that no consumer can read, of every kind and in every
    codec: each is refused with INVALID_RECORD, odd ones that can be read are taken, and Kafka's consumer
    reads from the first record to the last."""
    with (
        LiveBroker(tmp_path, RECORDS, wal="256MiB", is_warm=True) as broker,
        Client(broker.address) as client,
    ):
        client.create("shared")
        sent, taken = [], []
        for number, (name, batch) in enumerate(odd_batches()):
            sent.append(f"record {number}")
            client.produce("shared", [sent[-1].encode()])
            if send_batch(client, "shared", batch).error_code != ErrorCode.INVALID_RECORD:
                taken.append(name)
        readable = [send_batch(client, "shared", batch).error_code for _, batch in readable_batches()]
        client.produce("shared", [b"the last"])
        assert taken == []
        assert readable == [0] * len(readable)
        began = time.monotonic()
        found = read_by_java(broker, "shared", client.offset("shared", -1))
        print(
            f"\n{len(sent)} broken batches between records: a Java consumer read on to the end in "
            f"{time.monotonic() - began:.1f} s"
        )
        assert found[: len(sent)] == sent
        assert found[-1] == "the last"


def test_what_only_a_header_tells_is_taken_where_only_headers_are_judged(tmp_path: Path) -> None:
    """A topic may be told to trust its producers' records: what is broken inside is taken there, and at no
    other."""
    with LiveBroker(tmp_path, RECORDS, wal="64MiB", is_warm=True) as broker, Client(broker.address) as client:
        client.create("trusting", record_validation="header")
        client.create("careful")
        junk = dict(odd_batches())["junk as gzip"]
        assert send_batch(client, "trusting", junk).error_code == 0
        assert send_batch(client, "careful", junk).error_code == ErrorCode.INVALID_RECORD


def test_what_unpacks_to_a_lot_delays_nobody(tmp_path: Path) -> None:
    """Batches of 3 KiB that unpack to a hundred MiB, and of 500 bytes that unpack to fifteen, from four
    connections at once: refused, within the memory that is set, and another client's produce goes on."""
    bombs = [batch_of(run_of_zeros(count), count, Codec.ZSTD) for count in (BOMB_RECORDS, 2 * MIB)]
    settings = {**RECORDS, "memory.max.bytes": "256MiB"}
    with (
        LiveBroker(tmp_path, settings, wal="64MiB", is_warm=True) as broker,
        Client(broker.address) as client,
    ):
        client.create("bombs", 8)
        client.create("other")
        attackers = [Client(broker.address, 120) for _ in range(4)]
        with Bystander(broker, produce_one("other")) as bystander:
            data = [
                TopicProduceData(
                    "bombs",
                    partition_data=[PartitionProduceData(n, memoryview(bombs[n % 2])) for n in range(8)],
                )
            ]
            frame = encode_request(
                NAMED["Produce"], VERSION_BY_NAME, 1, "attack", ProduceRequest(None, -1, 60_000, data)
            )
            rounds = BOMB_COUNT // 4 // 8 or 1
            codes: set[int] = set()
            for attacker in attackers:
                attacker.socket.sendall(frame * rounds)
            for attacker in attackers:
                for _ in range(rounds):
                    answer = attacker.take_answer("Produce", VERSION_BY_NAME)
                    codes |= {part.error_code for part in answer.responses[0].partition_responses}
            bystander.check_served()
        for attacker in attackers:
            attacker.socket.close()
        print(
            f"\n{rounds * 32} bombs: codes {sorted(codes)}, bystander {bystander.slowest_s * 1e3:.0f} ms of"
            f" {len(bystander.latencies_s)}, {bystander.peak_memory_bytes / MIB:.0f} MiB"
        )
        assert codes <= {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD}
        assert bystander.slowest_s < SLOWEST_S
        assert bystander.peak_memory_bytes < 256 * MIB
