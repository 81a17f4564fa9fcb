"""Starts that must not be: each ends with exit code 1 and one plain sentence that says what is wrong and what
to do, and nothing is changed.

Mistakes in the settings end with code 2, all of them told at once; a misspelling only warns. A damaged object
ends no start: it fails the reads that need it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from confluent_kafka import Producer

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.live import LiveBroker
from tests.live.wire import Wire
from tests.patience import PATIENCE_S

BLOCK_BYTES = 4096


def settings(folder: Path, **more: str) -> dict[str, str]:
    """`more` with underscores for dots. The WAL is small, since every test copies one."""
    place = folder / "data" / "wal"
    return {
        "s3.wal.path": f"0@file://{place}?capacity=4MiB",
        **{key.replace("_", "."): more[key] for key in more},
    }


def produce(address: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for number in range(count):
        producer.produce("t", f"{number}".encode() * 100, partition=0)
        assert producer.flush(PATIENCE_S) == 0  # a group of the WAL for each


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an orderly stop leaves: everything in the bucket."""
    folder = tmp_path_factory.mktemp("stopped")
    broker = LiveBroker(folder, settings(folder)).start()
    produce(broker.address, 10)
    assert broker.stop() == 0
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a kill leaves: everything in the WAL. Another cluster than `stopped`."""
    folder = tmp_path_factory.mktemp("killed")
    broker = LiveBroker(folder, settings(folder)).start()
    produce(broker.address, 10)
    broker.kill()
    return folder


def test_a_new_cluster_is_announced(stopped: Path, tmp_path: Path) -> None:
    """By its first start alone: a mistyped directory would begin another one."""
    first = (stopped / "broker.log").read_text()
    found = re.search(r"new cluster, for nothing was there yet: (\S+)", first)
    assert found is not None, first
    broker = LiveBroker(tmp_path, settings(tmp_path))
    copied(stopped, tmp_path)
    with broker:
        pass
    again = (tmp_path / "broker.log").read_text()
    assert f" cluster {found.group(1)}" in again
    assert "new cluster" not in again


def test_what_a_node_keeps_is_its_owners_alone(stopped: Path, killed: Path) -> None:
    """Write-ahead log, metadata, objects and locks, and the folders that they lie in: nobody else may read or
    enter them."""
    data = [stopped / "data", killed / "data"]
    found = [*data, *(path for folder in data for path in folder.rglob("*"))]
    assert {"wal", "objects", "meta.properties", "metadata.reserve", ".lock"} <= {path.name for path in found}
    assert [str(path) for path in found if path.stat().st_mode & 0o077] == []


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source / "data", target / "data")
    return target


def refused(folder: Path, **more: str) -> str:
    """The sentence of a start that fails: it is the last that is said, whatever else has to end, and no
    future's failure is told as unseen."""
    process = subprocess.run(
        LiveBroker(folder, settings(folder, **more)).command(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert process.returncode == 1, process
    assert process.stdout == ""
    told = [line for line in process.stderr.splitlines() if line.startswith("millrace:")]
    assert len(told) == 1, process.stderr
    assert "Traceback" not in process.stderr
    assert "never retrieved" not in process.stderr
    assert process.stderr.endswith(told[0] + "\n"), process.stderr
    start = "millrace: cannot start: "
    assert told[0].startswith(start)
    return told[0].removeprefix(start)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def test_a_second_process_on_one_data_directory(stopped: Path, tmp_path: Path) -> None:
    """Is told who has it; the first goes on."""
    folder = copied(stopped, tmp_path)
    with LiveBroker(folder, settings(folder)) as first:
        sentence = refused(folder)
        assert (
            f"is in use by process {first.pid}: stop it, or give this one a data directory of its own"
            in sentence
        )
        produce(first.address, 1)


def test_a_second_process_on_one_wal(stopped: Path, tmp_path: Path) -> None:
    """It has a log directory and a bucket of its own, both empty: it is told that the WAL is somebody's, and
    to remove nothing."""
    folder = copied(stopped, tmp_path)
    with LiveBroker(folder, settings(folder)) as first:
        sentence = refused(
            tmp_path / "second", s3_wal_path=f"0@file://{folder / 'data' / 'wal'}?capacity=4MiB"
        )
        assert f"{folder / 'data' / 'wal'} is in use by another process: stop it" in sentence
        assert "remove" not in sentence
        produce(first.address, 1)


def no_log(folder: Path) -> None:
    shutil.rmtree(folder / "data" / "metadata")


def no_log_no_bucket(folder: Path) -> None:
    no_log(folder)
    shutil.rmtree(folder / "data" / "objects")


def no_bucket(folder: Path) -> None:
    shutil.rmtree(folder / "data" / "objects")


def broken_marker(folder: Path) -> None:
    (folder / "data" / "objects" / "millrace-cluster").write_text("{}")


def damaged_log(folder: Path) -> None:
    (log,) = (folder / "data" / "metadata" / "__cluster_metadata-0").glob("*.log")
    flip(log, log.stat().st_size // 2)


def damaged_log_epoch(folder: Path) -> None:
    """A batch's leader epoch is outside its checksum."""
    (log,) = (folder / "data" / "metadata" / "__cluster_metadata-0").glob("*.log")
    flip(log, 15)


def damaged_state(folder: Path) -> None:
    flip(folder / "data" / "metadata" / "__cluster_metadata-0" / "quorum-state", 0)


def no_log_file(folder: Path) -> None:
    for log in (folder / "data" / "metadata" / "__cluster_metadata-0").glob("*.log"):
        log.unlink()


STOPPED: dict[str, tuple[Callable[[Path], None], str]] = {
    "an empty log beside a bucket": (
        no_log,
        "the metadata log directory is empty, but * holds the data of cluster *: restore the log directory "
        "(log.dirs) *",
    ),
    "an empty log beside a WAL": (
        no_log_no_bucket,
        "the metadata log directory is empty, but the WAL * is in use: restore the log directory *",
    ),
    "a bucket that lost its objects": (no_bucket, "* holds nothing of cluster *: give the bucket that "
                                                  "belongs *"),
    "a bucket whose marker is damaged": (broken_marker, "the object millrace-cluster in * is damaged; remove "
                                                        "it, *"),
    "a flipped byte in the metadata log": (damaged_log, "the metadata log cannot be used: *: at byte *; "
                                                        "nothing was changed; *"),
    "a flipped byte in a batch's epoch": (damaged_log_epoch, "the metadata log cannot be used: *epoch 1*; "
                                                             "nothing was changed; *"),
    "a flipped byte in the quorum's state": (damaged_state, "the metadata log cannot be used: "
                                                            "*quorum-state*"),
    "a metadata log without segments": (no_log_file, "the metadata log cannot be used: *segments are gone*"),
}  # fmt: skip


@pytest.mark.parametrize("name", STOPPED)
def test_what_does_not_fit_or_is_damaged_is_refused(stopped: Path, tmp_path: Path, name: str) -> None:
    """After an orderly stop, one thing is gone or damaged."""
    harm, pattern = STOPPED[name]
    folder = copied(stopped, tmp_path)
    harm(folder)
    sentence = refused(folder)
    assert fnmatchcase(sentence, pattern), sentence


def test_another_clusters_wal_and_bucket(stopped: Path, killed: Path, tmp_path: Path) -> None:
    """Each is named with both clusters."""
    folder = copied(stopped, tmp_path / "wal")
    shutil.copy(killed / "data" / "wal", folder / "data" / "wal")
    sentence = refused(folder)
    assert fnmatchcase(
        sentence,
        "the WAL * belongs to cluster *, and this is cluster *: give the WAL that belongs to this node*",
    )
    folder = copied(stopped, tmp_path / "bucket")
    shutil.rmtree(folder / "data" / "objects")
    shutil.copytree(killed / "data" / "objects", folder / "data" / "objects")
    sentence = refused(folder)
    assert fnmatchcase(
        sentence,
        "* holds the data of cluster *, and this node belongs to cluster *: give this cluster a bucket*",
    )


def test_another_node_or_cluster_by_its_settings(stopped: Path, tmp_path: Path) -> None:
    """The directory says whose it is."""
    folder = copied(stopped, tmp_path)
    sentence = refused(folder, node_id="7")
    assert fnmatchcase(
        sentence, "*meta.properties was written with node.id=1, and now node.id=7 is set: set it as it was*"
    )
    sentence = refused(folder, cluster_id="AAAAAAAAAAAAAAAAAAAAAQ")
    assert fnmatchcase(
        sentence, "*with cluster.id=*, and now cluster.id=AAAAAAAAAAAAAAAAAAAAAQ is set: set it as it was*"
    )


def test_a_lost_wal_is_given_up_only_when_told(killed: Path, tmp_path: Path) -> None:
    """It may hold acknowledged records: the start is refused, again and again, until the operator accepts the
    loss for one start, which says of each partition from where on records are given up."""
    folder = copied(killed, tmp_path)
    (folder / "data" / "wal").unlink()
    for _ in range(2):
        sentence = refused(folder)
        assert fnmatchcase(
            sentence,
            "the WAL * is new, but * streams were open *had the WAL * at *. Put that back (s3.wal.path), or "
            "*wal.lost.accept=true*",
        )
    with LiveBroker(folder, settings(folder, wal_lost_accept="true")) as broker:
        produce(broker.address, 1)
    said = [line for line in broker.log_path.read_text().splitlines() if "WAL loss accepted" in line]
    assert [line.partition("WAL loss accepted: ")[2] for line in said] == [
        "t-0: records from offset 0 on that were in the WAL alone are given up; leader epoch is now 1"
    ]
    stands = "wal.lost.accept=true has done what it was given for"
    assert broker.log_path.read_text().count(stands) == 1
    with LiveBroker(folder, settings(folder, wal_lost_accept="true")) as broker:  # nothing is lost any more
        assert broker.log_path.read_text().count(stands) == 2
    with LiveBroker(folder, settings(folder)) as broker:
        assert broker.log_path.read_text().count(stands) == 2


def test_a_flipped_byte_in_the_wal(killed: Path, tmp_path: Path) -> None:
    """Below what was confirmed it is damage, and told; the last blocks cannot be told from a tail that was
    being written."""
    folder = copied(killed, tmp_path)
    wal = folder / "data" / "wal"
    data = wal.read_bytes()
    used = [
        place
        for place in range(2 * BLOCK_BYTES, len(data), BLOCK_BYTES)
        if any(data[place : place + BLOCK_BYTES])
    ]
    flip(wal, used[len(used) // 2] + 100)
    before = wal.read_bytes()[2 * BLOCK_BYTES :]
    sentence = refused(folder)
    assert fnmatchcase(
        sentence,
        "the WAL * cannot be recovered: the WAL is damaged at position *; the WAL was not changed: mend the "
        "device; or see with *",
    )
    assert wal.read_bytes()[2 * BLOCK_BYTES :] == before


def test_a_flipped_byte_in_an_object_fails_its_reads_alone(stopped: Path, tmp_path: Path) -> None:
    """The start succeeds, a consumer of the damaged records gets an error and none of the bytes, the log
    names the object, and the broker takes and serves new ones."""
    folder = copied(stopped, tmp_path)
    (stored,) = [
        path
        for path in (folder / "data" / "objects").rglob("*")
        if path.is_file() and path.parent.parent.name == "objects" and path.stat().st_size > 1000
    ]
    flip(stored, stored.read_bytes().index(b"55555") + 10)
    with LiveBroker(folder, settings(folder)) as broker, Wire(broker.address) as wire:
        for _ in range(3):
            assert fetch(wire, 0) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
        produce(broker.address, 1)
        code, data = fetch(wire, 10)
        assert code == 0
        assert b"0" * 100 in data
    told = [line for line in broker.log_path.read_text().splitlines() if " cannot be read: object " in line]
    assert len(told) == 1
    said = (
        f"t-0 offsets 0 to 9 cannot be read: object {stored.relative_to(folder / 'data' / 'objects')} is "
        "damaged at byte"
    )
    assert said in told[0]


def fetch(wire: Wire, offset: int) -> tuple[int, bytes]:
    """The partition's code and bytes."""
    partitions = [FetchPartition(0, -1, offset, partition_max_bytes=1 << 20)]
    request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchTopic("t", partitions=partitions)])
    (found,) = wire.ask(1, 11, request).responses[0].partitions
    return found.error_code, bytes(found.records or b"")


def test_an_address_that_is_taken(stopped: Path, tmp_path: Path) -> None:
    """Of clients and of the admin listener."""
    folder = copied(stopped, tmp_path / "first")
    with LiveBroker(folder, settings(folder)) as broker:
        other = tmp_path / "other"
        for key, address in (
            ("listeners", f"PLAINTEXT://{broker.address}"),
            ("admin_listener", f"127.0.0.1:{broker.admin_port}"),
        ):
            sentence = refused(other, **{key: address})
            assert fnmatchcase(
                sentence,
                "cannot listen on 127.0.0.1:*: Address already in use; set listeners or admin.listener *",
            )
            assert not (other / "data").exists()


def test_places_that_cannot_be(tmp_path: Path) -> None:
    """Folders that cannot be made, a file where a folder should be, a device that is too small."""
    (tmp_path / "file").write_text("x")
    assert fnmatchcase(
        refused(tmp_path / "a", log_dirs=f"{tmp_path}/file/log"), "cannot use the disk at *file*: *"
    )
    sentence = refused(tmp_path / "b", s3_data_buckets=f"0@file://{tmp_path}/file/objects")
    assert fnmatchcase(sentence, "0@file://*file/objects cannot be the data bucket: *")
    sentence = refused(tmp_path / "c", s3_wal_path=f"0@file://{tmp_path}/wal?capacity=900TiB")
    wanted = 900 << 40
    assert fnmatchcase(
        sentence,
        f"no room on the disk for *wal: No space left on device for {wanted} bytes of log and *(* bytes "
        "wanted, * free): make room, or *",
    )
    assert not (tmp_path / "c" / "data" / "metadata").exists()


def test_mistakes_in_the_settings_are_told_all_at_once(tmp_path: Path) -> None:
    """Exit code 2, one line each, with the place it was given in; nothing was made on disk."""
    wrong = {
        "num.partitions": "many",
        "node.id": "-3",
        "compression.type": "brotli",
        "listeners": "nonsense",
        "s3.data.buckets": "0@gs://bucket",
        "s3.wal.path": "0@tape://reel",
    }
    process = subprocess.run(
        LiveBroker(tmp_path, wrong).command(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert process.returncode == 2
    lines = process.stderr.splitlines()
    assert lines[0] == "millrace: the settings hold mistakes:"
    for key, value in wrong.items():
        assert [
            line for line in lines[1:] if line.startswith(f"  {key}={value} ") and "--override" in line
        ], (
            key,
            lines,
        )
    assert len(lines) == 1 + len(wrong)
    assert not (tmp_path / "data").exists()


def test_a_misspelt_setting_warns_and_names_the_nearest(tmp_path: Path) -> None:
    """The broker starts without it."""
    with (
        LiveBroker(
            tmp_path, {"num.partition": "3", "auto.create.topic.enable": "false"}, wal="4MiB"
        ) as broker,
        Wire(broker.address),
    ):
        told = broker.log_path.read_text()
        assert "unknown key num.partition (--override) has no effect; did you mean num.partitions?" in told
        assert "did you mean auto.create.topics.enable?" in told
