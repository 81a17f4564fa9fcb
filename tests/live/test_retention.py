"""Retention as clients see it: old segments go by time and by size, their objects leave the store, and a
clock that jumps deletes nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

from confluent_kafka import Consumer

from tests.live.client import EARLIEST, LATEST, Client
from tests.live.shifted import ShiftedBroker
from tests.patience import PATIENCE_S, until

OFFSET_OUT_OF_RANGE, INVALID_TIMESTAMP = 1, 32
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
DAY_MS = 24 * HOUR_MS
SETTINGS = {
    "s3.wal.upload.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "s3.object.delete.retention.minutes": "0",
    # so that a large batch gets an object of its own, and goes with it
    "s3.stream.object.split.size": "500000",
}


def stands_at(client: Client, topic: str, start: int) -> None:
    """In a while the log starts there; and it stays there for a few rounds of retention."""
    until(lambda: client.offset(topic, EARLIEST) >= start)
    time.sleep(0.5)
    assert client.offset(topic, EARLIEST) == start


def is_stored(folder: Path, content: bytes) -> bool:
    return any(content in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_what_is_old_or_too_much_goes(tmp_path: Path) -> None:
    """By age and by size, whole segments only; consumers below the start are told so and go on from it;
    objects leave the store; compacted topics and records from the future stay."""
    with ShiftedBroker(tmp_path, SETTINGS, wal="64MiB") as broker, Client(broker.address) as client:
        now_ms = int(time.time() * 1000)
        client.create("aged", retention_ms=HOUR_MS, segment_ms=MINUTE_MS)
        values = [os.urandom(2000) for _ in range(5)]
        for age_ms, value in zip(
            (3 * HOUR_MS, 2 * HOUR_MS, HOUR_MS // 2, MINUTE_MS * 3, 0), values, strict=True
        ):
            client.produce("aged", [value], time_ms=now_ms - age_ms)
        client.create("sized", segment_bytes=1 << 20, retention_bytes=2 << 20, retention_ms=-1)
        large = [os.urandom(700_000) for _ in range(6)]
        for value in large:
            client.produce("sized", [value])
            time.sleep(0.25)
        client.create("compacted", cleanup_policy="compact", retention_ms=1000, segment_ms=MINUTE_MS)
        client.create("future", retention_ms=1000)
        for number in range(3):
            client.produce(
                "compacted", [b"%d" % number], key=b"k%d" % number, time_ms=now_ms - DAY_MS + number * HOUR_MS
            )
        client.produce("future", [b"soon"], time_ms=now_ms + HOUR_MS // 2)
        refused = client.send("future", [b"too far"], time_ms=now_ms + 2 * HOUR_MS)
        assert refused.error_code == INVALID_TIMESTAMP
        stands_at(client, "aged", 2)
        stands_at(client, "sized", 3)
        assert client.fetch([("aged", 0, 0)])["aged", 0].error_code == OFFSET_OUT_OF_RANGE
        assert client.read("aged", start=2) == values[2:]
        objects = tmp_path / "data" / "objects"
        until(lambda: all(is_stored(objects, value) for value in large[3:]))
        until(lambda: not any(is_stored(objects, value) for value in large[:3]))
        assert client.read("compacted") == [b"0", b"1", b"2"]
        assert client.read("future") == [b"soon"]
        check_consumer(broker.address, values[2:])
        starts = {name: client.offset(name, EARLIEST) for name in ("aged", "sized")}
        broker.kill()
        broker.start()
        with Client(broker.address) as again:
            assert {name: again.offset(name, EARLIEST) for name in starts} == starts
            assert again.read("aged", start=2) == values[2:]


def check_consumer(address: str, values: list[bytes]) -> None:
    """One that stands below the start goes on from where the log begins now."""
    settings = {"bootstrap.servers": address, "group.id": "late", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe(["aged"])
    seen: list[bytes | None] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < len(values) and time.monotonic() < deadline:
        seen += [message.value() for message in consumer.consume(10, 0.5)]
    consumer.close()
    assert seen == values


def test_a_clock_that_jumps_deletes_nothing(tmp_path: Path) -> None:
    """The wall clock leaps a month ahead: retention by time is suspended, and says so; by size it goes on.
    Set right, it goes on by time."""
    with ShiftedBroker(tmp_path, SETTINGS, wal="64MiB") as broker, Client(broker.address) as client:
        client.create("young", retention_ms=HOUR_MS)
        client.create("sized", segment_bytes=1 << 20, retention_bytes=1 << 20, retention_ms=HOUR_MS)
        for _ in range(3):
            client.produce("young", [b"young"])
        time.sleep(0.3)
        broker.shift(30 * DAY_MS)
        until(lambda: "retention by time is suspended" in broker.log_path.read_text())
        for _ in range(3):
            client.produce("sized", [os.urandom(700_000)])
        stands_at(client, "sized", 1)
        stands_at(client, "young", 0)
        broker.shift(0)
        time.sleep(0.5)
        client.create("old", retention_ms=HOUR_MS)
        client.produce("old", [b"old"], time_ms=int(time.time() * 1000) - DAY_MS)
        stands_at(client, "old", 1)
        stands_at(client, "young", 0)
        assert client.offset("young", LATEST) == 3
