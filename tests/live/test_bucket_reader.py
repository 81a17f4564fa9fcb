"""A stranger's reader, written from docs/formats with nothing of the broker, finds every record that a live
broker uploaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.live import LiveBroker
from tests.live.client import Client
from tests.patience import PATIENCE_S

READER = Path(__file__).resolve().parents[2] / "tools" / "bucket_reader.py"
Row = tuple[int, int, int, str | None, str | None]


def read(data: Path, *topic: str) -> subprocess.CompletedProcess[str]:
    """In an interpreter that has the standard library alone."""
    command = [sys.executable, "-I", "-S", str(READER), str(data / "objects"), str(data / "metadata"), *topic]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, list[Row]]]]:
    """The data directory of a broker that compacts and was stopped twice (a snapshot and a log), and what its
    topics hold."""
    sent: dict[str, list[Row]] = {"plain": [], "zipped": [], "late": []}
    overrides = {
        "s3.wal.upload.interval.ms": "100",
        "num.partitions": "2",
        "s3.stream.set.object.compaction.interval.minutes": "0",
        "s3.stream.object.compaction.interval.minutes": "0",
    }
    with LiveBroker(tmp_path_factory.mktemp("reader"), overrides, wal="64MiB") as made:
        for topic in sent:
            if topic == "late":
                made.restart()
            with Client(made.address) as client:
                client.create(topic, 2)
            producer = KafkaProducer(
                bootstrap_servers=made.address,
                compression_type="gzip" if topic == "zipped" else None,
                linger_ms=20,
            )
            waiting = []
            for number in range(60):
                key = None if number % 7 == 0 else f"key {number}"
                value = None if number % 7 == 3 else f"v\u00e4lue {number} " * (number * 29 % 400)
                ms = 1_700_000_000_000 + number * 1000
                encoded = [text if text is None else text.encode() for text in (value, key)]
                told = producer.send(topic, *encoded, partition=number % 2, timestamp_ms=ms)
                waiting.append((number % 2, told, ms, key, value))
            sent[topic] = [(partition, told.get(60).offset, *rest) for partition, told, *rest in waiting]
            producer.close()
        made.stop()
        yield made.folder / "data", sent


def test_it_is_short_and_needs_nothing() -> None:
    """Seven score lines, and imports of the standard library."""
    lines = READER.read_text().splitlines()
    assert len(lines) <= 140
    imported = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert imported <= set(sys.stdlib_module_names)


def test_every_record_is_found(broker: tuple[Path, dict[str, list[Row]]]) -> None:
    """Partition, offset, timestamp, key and value, nulls and gzip included, of topics before and after a
    snapshot; and the counts."""
    data, sent = broker
    for topic, rows in sent.items():
        found = [json.loads(line) for line in read(data, topic).stdout.splitlines()]
        names = ("partition", "offset", "timestamp", "key", "value")
        assert [tuple(row[name] for name in names) for row in found] == sorted(rows)
    listed = read(data).stdout.splitlines()
    assert sorted(listed) == [f"{topic} 2 partitions 60 records" for topic in sorted(sent)]


def test_it_refuses_a_flipped_byte(broker: tuple[Path, dict[str, list[Row]]], tmp_path: Path) -> None:
    """What is damaged is never shown: the reader names the part and ends."""
    data, _ = broker
    words = "v\u00e4lue 58".encode()
    path = next(
        one for one in (data / "objects").glob("*/objects/*/*") if one.is_file() and words in one.read_bytes()
    )
    content = path.read_bytes()
    inside = content.index(words)
    block = content.rindex(b"MRDB", 0, inside)
    for position, part in (
        (inside, "block"),
        (block + 17, "block"),
        (len(content) - 60, "index"),
        (len(content) - 20, "footer"),
    ):
        damaged = bytearray(content)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        said = read(data)
        assert said.returncode != 0, part
        assert f"the {part}" in said.stderr
        assert "checksum differs" in said.stderr
    path.write_bytes(content)
    assert read(data).returncode == 0
