"""The broker on an S3 bucket (moto's server): there and back, a store that goes away, a start that cannot be.

`MILLRACE_OUTAGE_S` makes the outages longer than the short form's.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.history import History
from tests.crash.test_kill import Load, read_all
from tests.live import LiveBroker, free_port
from tests.live.bucket import Bucket
from tests.live.client import EARLIEST, LATEST, Client
from tests.patience import PATIENCE_S, until

MEMORY_BYTES = 256 << 20
GIVES_UP_S = 30.0  # a client, by its own request.timeout.ms
# The interpreter, code, sockets and what is under way come on top of what the setting splits.
RESIDENT_BYTES_MAX = MEMORY_BYTES + (128 << 20)
OUTAGE_S = float(os.environ.get("MILLRACE_OUTAGE_S", "1.5"))
STORAGE_ERROR = 56


@pytest.fixture(scope="module")
def server() -> Iterator[Bucket]:
    with Bucket() as made:
        yield made


@pytest.fixture
def bucket(server: Bucket) -> Iterator[Bucket]:
    yield server
    server.go_on()  # whatever the test left behind
    server.check_keys(False)
    server.door.open()


def on_bucket(folder: Path, address: str, **settings: object) -> LiveBroker:
    overrides = {"s3.data.buckets": address, "s3.wal.upload.interval.ms": "200"}
    overrides |= {name.replace("_", "."): str(value) for name, value in settings.items()}
    return LiveBroker(folder, overrides, wal="64MiB")


def test_records_go_to_the_bucket_and_come_back_from_it(tmp_path: Path, bucket: Bucket) -> None:
    """What was produced is read from objects after a restart; what retention or a deletion drops leaves the
    bucket."""
    settings = {"log_retention_check_interval_ms": 200, "s3_object_delete_retention_minutes": 0}
    with on_bucket(tmp_path, bucket.address(), **settings) as broker:
        sent: dict[int, list[bytes]] = {0: [], 1: []}
        with Client(broker.address) as client:
            client.create("kept", 2)
            client.create("short", segment_bytes=1 << 20, retention_bytes=0)
            for number in range(40):
                values = [b"%d-%d " % (number, place) * (number * 37 % 500 + 1) for place in range(20)]
                client.produce("kept", values, number % 2)
                sent[number % 2] += values
            for _ in range(4):
                client.produce("short", [os.urandom(700_000)])
        until(bucket.keys)
        broker.restart()  # empties the caches and the WAL
        with Client(broker.address) as client:
            assert {partition: client.read("kept", partition) for partition in sent} == sent
            assert broker.metrics()['millrace_storage_reads_total{source="objects"}'] > 0
            assert client.offset("short", LATEST) == 4
            until(lambda: client.offset("short", EARLIEST) == 4)
            held = len(bucket.keys())
            assert client.delete("kept") == 0
            assert client.delete("short") == 0
        until(lambda: not bucket.keys())
        assert held


def ready_page(broker: LiveBroker) -> str:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{broker.admin_port}/health/ready", timeout=PATIENCE_S
        ) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refused:
        return str(refused.read().decode())
    except urllib.error.URLError:
        return "nobody is there"


def newest(history: History) -> int:
    """The highest acknowledged offset of partition 0, -1 for none."""
    return max(
        (offset for partition, offset in list(history.acknowledged.values()) if partition == 0), default=-1
    )


def test_a_store_that_goes_away_is_waited_for(tmp_path: Path, bucket: Bucket) -> None:
    """Under load the store refuses connections, then takes them and is silent: a patient producer sees no
    error, reads of history are refused before a client gives up and leave others alone, memory is bounded,
    uploads go on afterwards, and nothing is lost."""
    bucket.make("outage")
    address = f"{bucket.address('outage')}&apiCallAttemptTimeoutMs=500"  # four attempts before it is told
    with on_bucket(tmp_path, address, num_partitions=4, memory_max_bytes=MEMORY_BYTES) as broker:
        with Client(broker.address) as client:
            client.create("old")
            client.produce("old", [os.urandom(3_000_000 // 4) for _ in range(1)])
            client.create("idle")
            client.produce("idle", [b"idle"])
        broker.restart()  # what is old is in objects alone
        history = History()
        load = Load(broker.address, history)
        with Client(broker.address) as client:
            client.produce("old", [b"new"])  # opens the partition
            load.start()
            until(lambda: len(history.acknowledged) > 100 and newest(history) > 10)
            for go_away, come_back in ((bucket.door.shut, bucket.door.open), (bucket.stop, bucket.go_on)):
                go_away()
                began = time.monotonic()
                answers = client.fetch([("old", 0, 0), ("crash", 0, newest(history) // 2)])
                assert answers["crash", 0].records
                assert client.fetch([("old", 0, 0)])["old", 0].error_code == STORAGE_ERROR
                assert time.monotonic() - began < GIVES_UP_S
                until(lambda: "upload" in ready_page(broker))
                while time.monotonic() - began < OUTAGE_S:
                    assert broker.memory_bytes() < RESIDENT_BYTES_MAX
                    time.sleep(0.1)
                come_back()
                until(lambda: ready_page(broker) == "ready\n")
            assert len(client.read("old")) == 2
        load.is_stopping = True
        load.join(PATIENCE_S)
        assert not load.errors, load.errors[:5]
        assert len(history.acknowledged) == sum(len(values) for values in history.sent.values())
        broker.restart()
        assert history.findings(read_all(broker.address)) == []
        assert broker.metrics()['millrace_storage_reads_total{source="objects"}'] > 0


def begun(broker: LiveBroker) -> subprocess.Popen[bytes]:
    broker.folder.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(broker.command(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def check_refusal(process: subprocess.Popen[bytes], words: str) -> None:
    """It ends by itself, and its last word is a sentence with these in it."""
    said = process.communicate(timeout=PATIENCE_S)[1].decode()
    last = said.splitlines()[-1]
    assert process.returncode == 1, said
    assert last.startswith("millrace: cannot start: "), said
    assert words in last, said
    assert "0@s3://" in last, said
    assert "Traceback" not in said
    assert "never retrieved" not in said
    assert "secretKey=secret" not in said
    assert "('" not in last, last  # no tuple, no repr


def test_a_start_that_cannot_be_says_why_in_a_sentence(tmp_path: Path, bucket: Bucket) -> None:
    """Keys that nobody was given, a bucket that is not there, one that is another cluster's: a line for
    people, exit code 1."""
    bucket.make("taken")
    bucket.put("taken", "millrace-cluster", b'{"version":1,"cluster_id":"hGTiLit3SO-4Px19ZkbPNA"}')
    missing = begun(on_bucket(tmp_path / "missing", bucket.address("nowhere")))
    taken = begun(on_bucket(tmp_path / "taken", bucket.address("taken")))
    check_refusal(missing, "does not exist: millrace-cluster: NoSuchBucket")
    check_refusal(taken, "holds the data of cluster hGTiLit3SO-4Px19ZkbPNA")
    bucket.check_keys(True)
    check_refusal(begun(on_bucket(tmp_path / "denied", bucket.address())), "InvalidAccessKeyId")


def test_a_start_waits_for_a_store_that_is_away_and_says_so(tmp_path: Path, bucket: Bucket) -> None:
    """Nobody answers: the log and the ready page say what is waited for; once the store is there the start
    goes on; a signal ends it."""
    bucket.make("late")
    port = free_port()
    waiting = on_bucket(tmp_path / "never", bucket.address("late", port))
    waiting.begin()
    late = on_bucket(tmp_path / "late", bucket.address("late"))
    bucket.stop()
    late.begin()
    for broker in (waiting, late):
        until(lambda broker=broker: "object store" in broker.log_path.read_text())  # type: ignore[misc]
        until(lambda broker=broker: "object store" in ready_page(broker))  # type: ignore[misc]
    assert waiting.stop() == 0
    bucket.go_on()
    late.wait_ready()
    assert ready_page(late) == "ready\n"
    late.kill()
