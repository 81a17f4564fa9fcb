"""The broker on an object WAL: killed, taken away its store, replaced by a later start, on a directory and on
S3 (moto's server)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.__main__ import run_loop
from millrace.broker.cli import fsck
from tests.live import LiveBroker
from tests.live.bucket import Bucket
from tests.live.client import Client
from tests.live.test_s3 import begun, check_refusal, ready_page
from tests.patience import PATIENCE_S, until


def broker_on(folder: Path, wal: str, **settings: object) -> LiveBroker:
    """Uploads only at the end, so that what is produced is in the WAL alone."""
    overrides = {"s3.wal.path": wal, "s3.wal.upload.interval.ms": "3600000"}
    return LiveBroker(
        folder, overrides | {name.replace("_", "."): str(value) for name, value in settings.items()}
    )


def folder_address(folder: Path) -> str:
    return f"0@file://{folder}/wal-objects/?capacity=64MiB"


def produce(broker: LiveBroker, first: int, count: int) -> list[bytes]:
    sent = []
    with Client(broker.address) as client:
        for number in range(first, first + count):
            values = [b"%d-%d " % (number, place) * (number * 37 % 300 + 1) for place in range(5)]
            client.produce("kept", values)
            sent += values
    return sent


def read(broker: LiveBroker) -> list[bytes]:
    with Client(broker.address) as client:
        return client.read("kept")


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with Bucket() as made:
        yield made


@pytest.mark.parametrize("place", ["directory", "s3", "s3, reserved"])
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, place: str, bucket: Bucket) -> None:
    """Produce, kill -9, start again and read back; then stop in order. The log is where the address says, and
    holds no more than the seals of those that were killed once all is uploaded."""
    if place == "directory":
        walk(broker_on(tmp_path, folder_address(tmp_path)), kills=2)
        assert not (tmp_path / "data" / "wal").exists()
        left = [
            path for path in (tmp_path / "wal-objects").rglob("*") if path.is_file() and "/wal/" in str(path)
        ]
        assert len(left) < 8, left
        return
    name = "reserved" if "reserved" in place else "killed"
    bucket.make(name)
    # Two puts of one name at once are both the first to moto: so none is put twice.
    options = "&capacity=64MiB&batchInterval=50&hedge=off" + (
        "&fence=reservation" if "reserved" in place else ""
    )
    walk(broker_on(tmp_path, bucket.address(name) + options), kills=1)


def walk(broker: LiveBroker, kills: int) -> None:
    with broker:
        with Client(broker.address) as client:
            client.create("kept")
        sent = produce(broker, 0, 15)
        for turn in range(kills):
            broker.kill()
            broker.start()
            assert read(broker) == sent
            sent += produce(broker, 100 * (turn + 1), 10)
        assert broker.stop() == 0


UNREADY = "not ready: the write-ahead log cannot be written, and nothing is acknowledged"


def test_a_store_that_is_away_makes_producers_wait(tmp_path: Path, bucket: Bucket) -> None:
    """The WAL's bucket refuses connections for a while: a produce request that waits is answered without an
    error once it is back. Meanwhile the node is not ready, says that nothing is acknowledged, and measures
    for how long."""
    bucket.make("away")
    with broker_on(tmp_path, f"{bucket.address('away')}&apiCallAttemptTimeoutMs=500") as broker:
        with Client(broker.address) as client:
            client.create("kept")
            client.produce("kept", [b"before"])
        bucket.door.shut()
        answers: list[int] = []
        waiting = threading.Thread(target=lambda: answers.append(send_one(broker)), daemon=True)
        waiting.start()
        until(lambda: ready_page(broker).startswith(UNREADY))
        assert "the WAL waits for its store" in ready_page(broker)
        assert broker.metrics()["millrace_wal_blocked_seconds"] > 5
        assert answers == []
        bucket.door.open()
        waiting.join(PATIENCE_S)
        assert answers == [0]
        assert ready_page(broker) == "ready\n"
        broker.kill()
        broker.start()
        assert read(broker) == [b"before", b"patience"]


def send_one(broker: LiveBroker) -> int:
    with Client(broker.address) as client:
        return int(client.send("kept", [b"patience"], timeout_ms=50_000).error_code)


def test_a_frozen_broker_that_was_replaced_acknowledges_nothing(tmp_path: Path) -> None:
    """A broker is stopped as by a long pause and another start of its node takes the log and the metadata.
    Woken, the old one is sent a record: it answers no success and ends, naming the newer epoch; the log holds
    what the new one acknowledged."""
    with broker_on(tmp_path, folder_address(tmp_path)) as old:
        with Client(old.address) as client:
            client.create("kept")
            sent = produce(old, 0, 3)
        os.kill(old.pid, signal.SIGSTOP)
        # Its metadata directory is locked by it: the new start works on a copy, as on another machine.
        take_over(tmp_path, sent)
        with Client(old.address) as client:
            os.kill(old.pid, signal.SIGCONT)
            try:
                assert client.send("kept", [b"too late"], timeout_ms=20_000).error_code != 0
            except (ConnectionError, TimeoutError):
                pass  # it ended before it answered
        until(lambda: not old.is_running())
        assert "another owner has the WAL" in old.log_path.read_text(), old.log_path.read_text()


def take_over(tmp_path: Path, sent: list[bytes]) -> None:
    shutil.copytree(tmp_path / "data" / "metadata", tmp_path / "second" / "data" / "metadata")
    data = f"0@file://{tmp_path}/data/objects"
    with broker_on(tmp_path / "second", folder_address(tmp_path), s3_data_buckets=data) as new:
        assert read(new) == sent
        more = produce(new, 50, 2)
        assert read(new) == sent + more


def test_a_log_that_cannot_be_ours_says_why(tmp_path: Path, bucket: Bucket) -> None:
    """The log directory is new and the WAL is not, or the WAL's bucket does not exist: each start ends with a
    sentence, which does not blame the data bucket."""
    bucket.make("used")
    with broker_on(tmp_path / "first", bucket.address("used")):
        pass
    second = begun(broker_on(tmp_path / "second", bucket.address("used")))
    nowhere = begun(broker_on(tmp_path / "third", bucket.address("nowhere")))
    check_refusal(second, "is in use: restore the log directory")
    check_refusal(nowhere, "does not exist")


def test_fsck_looks_at_a_log_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside a running broker: the log's objects by kind, sound, and the broker goes on; a byte of one that
    counts is wrong: named, exit code 1, and nothing was changed."""

    def check() -> tuple[int, dict[str, Any]]:
        words = [
            "--data-dir",
            str(tmp_path / "data"),
            "--json",
            "--override",
            f"s3.wal.path={folder_address(tmp_path)}",
        ]
        code = fsck.run(words, {}, run_loop)
        return code, json.loads(capsys.readouterr().out)

    with broker_on(tmp_path, folder_address(tmp_path)) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        sent = produce(broker, 0, 10)
        code, found = check()
        assert (code, found["wal"]["is_sound"], found["wal"]["epoch"] >= 0) == (0, True, True)
        assert found["wal"]["objects"]["records"]["count"] >= 1
        sent += produce(broker, 50, 5)
        broker.kill()
        log = [
            path
            for path in sorted((tmp_path / "wal-objects").rglob("*"))
            if path.is_file() and path.stat().st_size > 300
        ]
        whole = log[-1].read_bytes()
        log[-1].write_bytes(whole[:250] + bytes([whole[250] ^ 1]) + whole[251:])
        before = {path: path.read_bytes() for path in (tmp_path / "wal-objects").rglob("*") if path.is_file()}
        code, found = check()
        assert (code, found["sound"], found["wal"]["is_sound"]) == (1, False, False)
        assert found["wal"]["damages"][0]["place"]["slot"] == int(log[-1].name)
        assert {
            path: path.read_bytes() for path in (tmp_path / "wal-objects").rglob("*") if path.is_file()
        } == before
        log[-1].write_bytes(whole)
        broker.start()
        assert read(broker) == sent
