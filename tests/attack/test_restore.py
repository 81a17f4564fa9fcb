"""The log directory is lost: it is built again from the bucket, and what clients knew is there, or named as
missing.

A random history first: topics made and deleted, records, deletions of records, group commits, compaction,
kills. Then the log directory goes, and with it the write-ahead log where that was on the same disk. With a
log of objects everything acknowledged is there again; with one on a disk everything that was committed. Real
clients compare.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.attack import IS_FULL
from tests.attack.restore_history import Known, Life, Place, check
from tests.attack.test_swapped_places import (
    broker_on,
    copy,
    produce,
    read,
    refusal,
    values,
    wait_uploaded,
    wal_at,
)
from tests.live import LiveBroker, warm
from tests.live.client import LATEST, Client
from tests.patience import PATIENCE_S

LIVES = 12 if IS_FULL else 2
STEPS = 60 if IS_FULL else 8
OFTEN = {
    "s3.wal.upload.interval.ms": "50",
    "s3.metadata.upload.interval.ms": "300",
    "s3.object.delete.retention.minutes": "0",
    "s3.stream.set.object.compaction.interval.minutes": "0",
    "s3.stream.object.compaction.interval.minutes": "0",
}


def ends_of(broker: LiveBroker, known: Known) -> dict[Place, int]:
    with Client(broker.address) as client:
        return {place: client.offset(place[0], LATEST, place[1]) for place in known.records}


def restore(folder: Path, broker: LiveBroker, *words: str) -> subprocess.CompletedProcess[str]:
    options = [*broker.command()[broker.command().index("serve") + 1 :]]
    command = ["-m", "millrace.broker", "restore", "--from", f"file://{folder / 'data' / 'objects'}"]
    return warm.run([*command, *options, *words])


def wait_saved(broker: LiveBroker) -> None:
    """What is committed is in the bucket, by age: nothing waits for it here."""
    deadline = time.monotonic() + PATIENCE_S
    while broker.metrics()["millrace_metadata_backup_age_seconds"] > 0:
        assert time.monotonic() < deadline, "metadata is not put"
        time.sleep(0.05)


def live(folder: Path, settings: dict[str, str], chance: random.Random, known: Known) -> None:
    """Lives that end by kill -9, each with compaction and with every kind of step."""
    for number in range(LIVES):
        with broker_on(folder, OFTEN, settings) as broker:
            life = Life(broker, chance, known, f"t{number}")
            life.run(STEPS)
            life.wait_compacted()
            life.kill()


def test_with_a_log_of_objects_everything_acknowledged_is_there_again(tmp_path: Path) -> None:
    """Log directory and every local file are gone after three kills: what clients were told is there, byte
    for byte, up to the last answer, and groups go on; what was deleted stays away."""
    settings = wal_at(tmp_path / "wal", "object")
    chance, known = random.Random(1), Known()
    live(tmp_path, settings, chance, known)
    with broker_on(tmp_path, OFTEN, settings, {"s3.wal.upload.interval.ms": "3600000"}) as broker:
        wait_saved(broker)  # deletions are as old as the bucket's metadata; records and commits are not
        life = Life(broker, chance, known, "last")
        life.make_topic()
        for step in (life.produce, life.commit, life.produce, life.commit_below_records):
            step()
        wait_saved(broker)  # that its partitions were opened
        life.kill()
    shutil.rmtree(tmp_path / "data" / "metadata")
    broker = broker_on(tmp_path, OFTEN, settings)
    assert "millrace restore" in refusal(broker)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    verified = restore(tmp_path, broker, "--verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "can be restored" in verified.stdout
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before, "--verify changed something"
    told = restore(tmp_path, broker, "--take-over")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "restored into an empty directory" in restore(tmp_path, broker, "--take-over").stderr
    with broker:
        count = check(broker, known)
        life = Life(
            broker, chance, known, "again"
        )  # and it serves on: ids and epochs are above all that were given
        life.make_topic()
        life.produce()
        life.close()
        check(broker, known)
    print(
        f"log of objects: {count} records of {len(known.records)} partitions are there again after "
        f"{LIVES + 1} kills"
    )


def test_with_a_log_on_a_disk_everything_committed_is_there_again(tmp_path: Path) -> None:
    """Log directory and WAL are gone after three kills: all that was in objects is there, groups' offsets
    too; what only the WAL had is named by partition and offset, and nothing else is."""
    settings = wal_at(tmp_path / "wal")
    chance, known = random.Random(2), Known()
    live(tmp_path, settings, chance, known)
    with broker_on(tmp_path, OFTEN, settings) as broker:
        life = Life(broker, chance, known, "seen")
        life.produce()
        life.commit_below_records()
        life.close()
        wait_uploaded(broker)
        ends = ends_of(broker, known)  # what was in doubt is there or not from here on
        broker.kill()
    committed = known.copy()
    with broker_on(tmp_path, OFTEN, settings, {"s3.wal.upload.interval.ms": "3600000"}) as broker:
        life = Life(broker, chance, known, "lost")
        for step in (life.produce, life.commit, life.produce):
            step()
        wait_saved(broker)
        life.kill()
    shutil.rmtree(tmp_path / "data" / "metadata")
    (tmp_path / "wal").unlink()
    broker = broker_on(tmp_path, OFTEN, settings)
    told = restore(tmp_path, broker, "--take-over")
    assert told.returncode == 1, told.stdout + told.stderr
    missing = re.findall(r"(\S+)-(\d+): offsets from (\d+) on", told.stdout)
    named = {(topic, int(partition)): int(first) for topic, partition, first in missing}
    written = {place for place in known.records if known.records[place] != committed.records[place]}
    assert written
    assert {place: first for place, first in named.items() if place in written} == {
        place: ends[place] for place in written
    }
    assert all(first == ends[place] for place, first in named.items() if not place[0].startswith("__")), named
    assert "wal.lost.accept=true" in told.stdout
    with broker_on(tmp_path, OFTEN, settings, {"wal.lost.accept": "true"}) as broker:
        count = check(broker, committed)
        assert ends_of(broker, committed) == ends
    print(
        f"log on a disk: {count} records are there; named as missing: {len(written)} partitions, each from "
        "its end on"
    )


def test_an_older_log_directory_is_refused_by_the_bucket(tmp_path: Path) -> None:
    """A copy is put back and the WAL is new, so that only the bucket knows better: refused, nothing changed,
    and the remedy works."""
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


@pytest.mark.parametrize(
    "words", [("--help",), ("--from", "s3:/nonsense"), ("--from", "file:///nowhere-at-all")]
)
def test_what_a_mistake_is_told(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Help teaches; mistakes are one sentence."""
    command = ["-m", "millrace.broker", "restore", "--data-dir", str(tmp_path), *words]
    ended = warm.run(command)
    if words == ("--help",):
        assert ended.returncode == 0
        assert "--take-over" in ended.stdout
        assert "wal.lost.accept" in ended.stdout
    else:
        assert ended.returncode == 2
        assert ended.stderr.count("\n") == 1, ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("kind", ["block", "object"])
def test_an_older_copy_of_the_wal_beside_a_restored_log_directory_is_refused(
    tmp_path: Path, kind: str
) -> None:
    """The machine's disk was put back from a snapshot, and its log directory was lost: what the bucket knows
    to be committed lies beyond the end of such a log, and with it may what was acknowledged since. The
    current log has everything."""
    wal = tmp_path / "wal"
    settings = {**wal_at(wal, kind), **OFTEN}
    with broker_on(tmp_path, settings) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(10))
        wait_uploaded(broker)
        copy(wal, tmp_path / "older")
        produce(broker, range(10, 20))
        wait_uploaded(broker)
        wait_saved(broker)
        broker.kill()
    with broker_on(tmp_path, settings, {"s3.wal.upload.interval.ms": "3600000"}) as broker:
        produce(broker, range(20, 25))
        wait_saved(broker)  # that its partition was opened anew
        broker.kill()
    copy(wal, tmp_path / "current")
    copy(tmp_path / "older", wal)
    (tmp_path / "data" / "metadata").rename(tmp_path / "lost")
    broker = broker_on(tmp_path, settings)
    told = restore(tmp_path, broker, "--take-over")
    assert told.returncode == 0, told.stderr
    assert "is an older copy" in refusal(broker)
    copy(tmp_path / "current", wal)
    with broker:
        assert read(broker) == values(range(25))
