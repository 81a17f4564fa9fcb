"""The log directory is lost: it is built again from the bucket, and what clients knew is there, or named as missing.

A random history first: topics made and deleted, records, deletions of records, group commits, compaction, kills. Then the log directory goes, and
with it the write-ahead log where that was on the same disk. With a log of objects everything acknowledged is there again; with one on a disk
everything that was committed. Real clients compare.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import NewTopic

from tests.attack import IS_FULL
from tests.attack.test_swapped_places import broker_on, produce, read, refusal, values, wait_uploaded, wal_at
from tests.live import LiveBroker
from tests.live.client import Client

ROUNDS = 12 if IS_FULL else 1
RECORDS = 1_000 if IS_FULL else 150
OFTEN = {
    "s3.wal.upload.interval.ms": "200",
    "s3.metadata.upload.interval.ms": "300",
    "s3.object.delete.retention.minutes": "0",
    "s3.stream.object.compaction.interval.minutes": "1",
}
PARTITIONS = 2


class Known:
    """What clients were told: records by partition, from the first offset that is still wanted, and groups' offsets."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], dict[int, bytes]] = {}
        self.deleted_before: dict[tuple[str, int], int] = {}
        self.committed: dict[tuple[str, int], int] = {}

    def expected(self) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
        return {
            place: sorted(
                (offset, value) for offset, value in records.items() if offset >= self.deleted_before.get(place, 0)
            )
            for place, records in self.records.items()
        }


def digest(found: dict[tuple[str, int], list[tuple[int, bytes]]]) -> str:
    total = hashlib.sha256()
    for place in sorted(found):
        total.update(repr((place, found[place])).encode())
    return total.hexdigest()


def one_life(
    broker: LiveBroker, chance: random.Random, known: Known, life: int, *, is_brief: bool = not IS_FULL
) -> None:
    """Makes history: everything in `known` was acknowledged. Brief: topics and records alone."""
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    topics = [f"t{life}-{number}" for number in range(2)]
    admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in topics])
    for name in topics:
        for partition in range(PARTITIONS):
            known.records[name, partition] = {}
    producer = KafkaProducer(bootstrap_servers=broker.address, acks="all", linger_ms=5)
    sent = []
    for number in range(RECORDS):
        topic, partition = chance.choice(sorted(known.records))
        value = f"{life} {number} ".encode() + b"x" * chance.randrange(400)
        sent.append((topic, partition, value, producer.send(topic, value, partition=partition)))
    producer.flush()
    for topic, partition, value, future in sent:
        known.records[topic, partition][future.get(10).offset] = value
    producer.close()
    if is_brief:
        admin.close()
        return
    place = chance.choice(sorted(known.records))
    before = max(known.records[place], default=0) // 2
    admin.delete_records({TopicPartition(*place): before})
    known.deleted_before[place] = max(known.deleted_before.get(place, 0), before)
    gone = f"t{life - 1}-1"
    if (gone, 0) in known.records:
        admin.delete_topics([gone])
        for partition in range(PARTITIONS):
            for table in (known.records, known.deleted_before, known.committed):
                table.pop((gone, partition), None)
    consumer = KafkaConsumer(bootstrap_servers=broker.address, group_id="readers", enable_auto_commit=False)
    place = chance.choice(sorted(known.records))
    offset = max(known.records[place], default=0)
    consumer.commit({TopicPartition(*place): OffsetAndMetadata(offset, "", -1)})
    known.committed[place] = offset
    consumer.close()
    admin.close()


def found_by_clients(broker: LiveBroker, known: Known) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    consumer = KafkaConsumer(bootstrap_servers=broker.address, auto_offset_reset="earliest", enable_auto_commit=False)
    places = [TopicPartition(*place) for place in known.records]
    found: dict[tuple[str, int], list[tuple[int, bytes]]] = {place: [] for place in known.records}
    consumer.assign(places)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(places)
    while any(consumer.position(place) < end for place, end in ends.items()):
        for place, records in consumer.poll(500).items():
            found[place.topic, place.partition] += [(record.offset, record.value) for record in records]
    consumer.close()
    return found


def committed_by_clients(broker: LiveBroker, known: Known) -> dict[tuple[str, int], int]:
    consumer = KafkaConsumer(bootstrap_servers=broker.address, group_id="readers", enable_auto_commit=False)
    found = {place: consumer.committed(TopicPartition(*place)) for place in known.committed}
    consumer.close()
    return found


def restore(folder: Path, broker: LiveBroker, *words: str) -> subprocess.CompletedProcess[str]:
    options = [*broker.command()[broker.command().index("serve") + 1 :]]
    command = [sys.executable, "-m", "millrace.broker", "restore", "--from", f"file://{folder / 'data' / 'objects'}"]
    return subprocess.run([*command, *options, *words], capture_output=True, text=True, timeout=60)


def make_history(folder: Path, settings: dict[str, str], seed: int) -> Known:
    """Lives that end by kill -9."""
    chance, known = random.Random(seed), Known()
    for life in range(ROUNDS):
        with broker_on(folder, OFTEN, settings) as broker:
            one_life(broker, chance, known, life, is_brief=False)
            if life == ROUNDS - 1:
                return finish(broker, known)
            broker.kill()
    return known


def wait_saved(broker: LiveBroker) -> None:
    """What is committed is in the bucket, by age: nothing waits for it here."""
    deadline = time.monotonic() + 30
    while broker.metrics()["millrace_metadata_backup_age_seconds"] > 0:
        assert time.monotonic() < deadline, "metadata is not put"
        time.sleep(0.05)


def finish(broker: LiveBroker, known: Known) -> Known:
    broker.kill()
    return known


def test_with_a_log_of_objects_everything_acknowledged_is_there_again(tmp_path: Path) -> None:
    """Log directory and every local file are gone: what clients were told is there, byte for byte, and groups go on."""
    settings = wal_at(tmp_path / "wal", "object")
    known = make_history(tmp_path, settings, 1)
    logs = tmp_path / "data" / "metadata"
    assert logs.is_dir()
    shutil.rmtree(logs)
    broker = broker_on(tmp_path, OFTEN, settings)
    assert "millrace restore" in refusal(broker)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    verified = restore(tmp_path, broker, "--verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "can be restored" in verified.stdout
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before, "--verify changed something"
    began = time.monotonic()
    told = restore(tmp_path, broker, "--take-over")
    assert told.returncode == 0, told.stdout + told.stderr
    took_s = time.monotonic() - began
    assert "restored into an empty directory" in restore(tmp_path, broker, "--take-over").stderr
    with broker:
        found = found_by_clients(broker, known)
        assert digest(found) == digest(known.expected())
        assert committed_by_clients(broker, known) == known.committed
        one_life(broker, random.Random(9), known, 100)  # and it serves on: ids and epochs are above all that were given
        assert digest(found_by_clients(broker, known)) == digest(known.expected())
    count = sum(map(len, found.values()))
    print(f"log of objects: {count} records of {len(found)} partitions are there again; restored in {took_s:.1f} s")


def test_with_a_log_on_a_disk_everything_committed_is_there_again(tmp_path: Path) -> None:
    """Log directory and WAL are gone: all that was in objects is there; what only the WAL had is named by partition and offset."""
    settings = wal_at(tmp_path / "wal")
    chance, known = random.Random(2), Known()
    with broker_on(tmp_path, OFTEN, settings) as broker:
        one_life(broker, chance, known, 0, is_brief=False)
        one_life(broker, chance, known, 1)
        wait_uploaded(broker)
        broker.kill()
    lost: dict[tuple[str, int], int] = {}
    with broker_on(tmp_path, OFTEN, settings, {"s3.wal.upload.interval.ms": "3600000"}) as broker:
        producer = KafkaProducer(bootstrap_servers=broker.address, acks="all")
        place = sorted(known.records)[0]
        for _ in range(5):
            offset = producer.send(place[0], b"only in the WAL", partition=place[1]).get(10).offset
            lost.setdefault(place, offset)
        producer.close()
        wait_saved(broker)
        broker.kill()
    shutil.rmtree(tmp_path / "data" / "metadata")
    (tmp_path / "wal").unlink()
    broker = broker_on(tmp_path, OFTEN, settings)
    told = restore(tmp_path, broker, "--take-over")
    assert told.returncode == 1, told.stdout + told.stderr
    (topic, partition), first = next(iter(lost.items()))
    assert f"{topic}-{partition}: offsets from {first} on" in told.stdout
    assert "wal.lost.accept=true" in told.stdout
    with broker_on(tmp_path, OFTEN, settings, {"wal.lost.accept": "true"}) as broker:
        assert digest(found_by_clients(broker, known)) == digest(known.expected())
        assert committed_by_clients(broker, known) == known.committed
    print(f"log on a disk: everything committed is there; named as missing: {topic}-{partition} from offset {first} on")


def test_an_older_log_directory_is_refused_by_the_bucket(tmp_path: Path) -> None:
    """A copy is put back and the WAL is new, so that only the bucket knows better: refused, nothing changed, and the remedy works."""
    settings = wal_at(tmp_path / "wal")
    with broker_on(tmp_path, OFTEN, settings) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(10))
        assert broker.stop() == 0
    logs = tmp_path / "data" / "metadata"
    shutil.copytree(logs, tmp_path / "older")
    with broker_on(tmp_path, OFTEN, settings) as broker:
        produce(broker, range(10, 30))
        assert broker.stop() == 0
    shutil.rmtree(logs)
    shutil.copytree(tmp_path / "older", logs)
    (tmp_path / "wal").unlink()
    said = refusal(broker_on(tmp_path, OFTEN, settings))
    assert "the metadata log is older than" in said or "older copy" in said
    assert "millrace restore" in said
    shutil.rmtree(logs)
    broker = broker_on(tmp_path, OFTEN, settings)
    told = restore(tmp_path, broker)  # it was stopped in order: nobody claims the bucket
    assert told.returncode == 0, told.stdout + told.stderr
    with broker:
        assert read(broker) == values(range(30))
    print("an older log directory: refused by the bucket, and restored from it")


@pytest.mark.parametrize("words", [("--help",), ("--from", "s3:/nonsense"), ("--from", "file:///nowhere-at-all")])
def test_what_a_mistake_is_told(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Help teaches; mistakes are one sentence."""
    command = [sys.executable, "-m", "millrace.broker", "restore", "--data-dir", str(tmp_path), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if words == ("--help",):
        assert ended.returncode == 0
        assert "--take-over" in ended.stdout
        assert "wal.lost.accept" in ended.stdout
    else:
        assert ended.returncode == 2
        assert ended.stderr.count("\n") == 1, ended.stderr
        assert "Traceback" not in ended.stderr
