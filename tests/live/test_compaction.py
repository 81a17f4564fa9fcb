"""A live broker compacts: many small uploads end as few objects, all of it readable, old files gone, metadata
consistent after a restart."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.__main__ import run_loop
from millrace.broker.cli import fsck
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.shifted import ShiftedBroker
from tests.patience import until

SETTINGS = {
    "s3.wal.upload.interval.ms": "40",
    "s3.object.delete.retention.minutes": "0",
    "s3.stream.set.object.compaction.interval.minutes": "0",
    "s3.stream.object.compaction.interval.minutes": "0",
}
TOPICS = ("orders", "notes", "events")
HOUR_MS = 3_600_000


def produce_in_small_uploads(broker: LiveBroker, count: int, size: int) -> dict[str, list[bytes]]:
    """So many times a record to each topic, with pauses in which it is uploaded."""
    sent: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
    with Client(broker.address) as client:
        for topic in TOPICS:
            client.create(topic)
        for _ in range(count):
            for topic in TOPICS:
                sent[topic].append(os.urandom(size))
                client.produce(topic, [sent[topic][-1]])
            time.sleep(0.06)
    return sent


def stored(folder: Path) -> list[str]:
    """Files of objects, while some of them go."""
    return [
        name
        for path, _, names in os.walk(folder / "objects")
        if "/objects/" in path[len(str(folder)) + 9 :]
        for name in names
    ]


def read_all(broker: LiveBroker) -> dict[str, list[bytes]]:
    with Client(broker.address) as client:
        return {topic: client.read(topic) for topic in TOPICS}


def metric(broker: LiveBroker, name: str) -> float:
    return broker.metrics()[name]


def check_bucket(broker: LiveBroker, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `millrace fsck` says of a stopped node: sound, and nothing stored that nobody knows."""
    capsys.readouterr()
    code = fsck.run(["--data-dir", str(broker.folder / "data"), "--json", *wal_of(broker)], {}, run_loop)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (code, found["sound"], found["list"]) == (0, True, []), found
    return found


def wal_of(broker: LiveBroker) -> list[str]:
    return ["--override", f"s3.wal.path=0@file://{broker.folder}/data/wal?capacity=64MiB"]


def test_many_small_uploads_become_few_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Thirty uploads of three topics: a handful of objects is left, the files of the others are gone, every
    record is read from objects after a kill and a restart, and the bucket is sound."""
    with LiveBroker(tmp_path, SETTINGS, wal="64MiB") as broker:
        sent = produce_in_small_uploads(broker, 30, 3000)
        made = 'millrace_store_requests_total{operation="put_if_absent",outcome="ok"}'
        assert metric(broker, made) >= 20
        until(lambda: metric(broker, 'millrace_metadata_objects{state="committed"}') <= 8)
        until(lambda: len(stored(tmp_path / "data")) <= 8)
        assert metric(broker, 'millrace_compaction_objects_total{direction="in"}') >= 15
        assert metric(broker, "millrace_compaction_quarantined_objects") == 0
        assert read_all(broker) == sent
        broker.kill()
        broker.start()
        assert read_all(broker) == sent
        assert metric(broker, 'millrace_storage_reads_total{source="objects"}') > 0
        broker.stop()
        assert check_bucket(broker, capsys)["objects"] <= 12


def test_what_is_old_gets_objects_of_its_own_and_composites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hours later no stream-set object is left; streams with large objects get a composite, through which
    everything is read; a deleted topic takes its composite and what it links with it."""
    settings = {**SETTINGS, "s3.stream.object.split.size": "20000"}
    settings["s3.stream.set.object.compaction.stream.split.size"] = "30000"
    with ShiftedBroker(tmp_path, settings, wal="64MiB") as broker:
        sent = produce_in_small_uploads(broker, 12, 40_000)
        broker.shift(3 * HOUR_MS)
        with Client(broker.address) as client:
            client.produce(TOPICS[0], [b"wakes it up"])
        sent[TOPICS[0]].append(b"wakes it up")
        until(lambda: metric(broker, "millrace_compaction_composite_objects_total") >= 1)
        until(lambda: metric(broker, 'millrace_metadata_objects{state="committed"}') <= 14)
        until(lambda: metric(broker, 'millrace_metadata_objects{state="pending_deletion"}') == 0)
        assert read_all(broker) == sent
        broker.kill()
        broker.start()
        assert read_all(broker) == sent
        broker.stop()
        assert check_bucket(broker, capsys)["objects"]
        broker.start()
        with Client(broker.address) as client:
            for topic in TOPICS:
                assert client.delete(topic) == 0
        # What was prepared when the broker was killed waits for its deadline.
        until(
            lambda: (
                len(stored(tmp_path / "data"))
                <= metric(broker, 'millrace_metadata_objects{state="prepared"}')
            )
        )
        broker.stop()
        check_bucket(broker, capsys)
