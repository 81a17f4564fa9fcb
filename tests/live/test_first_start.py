"""What a first start that is refused leaves behind: nothing that it made, and all that was there; the next
one finds the place as it was."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live import LiveBroker
from tests.live.bad_s3 import BadS3
from tests.live.client import Client
from tests.live.small_disk import CannotMount, SmallDisk
from tests.live.test_s3_lacking import running
from tests.live.test_start_refusals import refused, settings

MIB = 1 << 20


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(folder, 256 * MIB)
    try:
        disk.__enter__()
    except CannotMount as reason:
        warnings.warn(f"no test of a small disk: {reason}", stacklevel=1)
        pytest.skip(str(reason))
    try:
        yield disk
    finally:
        disk.__exit__(None, None, None)


def on_bucket(store: BadS3) -> dict[str, str]:
    return {"s3_data_buckets": store.address}


def on_wal_bucket(store: BadS3) -> dict[str, str]:
    return {"s3_wal_path": f"{store.address}&capacity=64MiB"}


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ("denies", on_bucket),
        ("no-bucket", on_bucket),
        ("denies-puts", on_bucket),
        ("denies", on_wal_bucket),
        ("no-bucket", on_wal_bucket),
    ],
)
def test_a_bucket_that_is_missing_or_denies(
    tmp_path: Path, fault: str, where: Callable[[BadS3], dict[str, str]]
) -> None:
    """No folder stays, no metadata log, nothing in the store; with the fault gone the same settings start a
    new cluster."""
    with running(fault) as store:
        refused(tmp_path, **where(store))
        assert not (tmp_path / "data").exists()
        assert not store.objects
        store.faults.clear()
        overrides = {name.replace("_", "."): value for name, value in where(store).items()}
        with LiveBroker(tmp_path, {**settings(tmp_path), **overrides}) as broker:
            assert "new cluster" in broker.log_path.read_text()


def test_what_was_there_stays(tmp_path: Path) -> None:
    """Of a data directory that somebody made, with something in it, not a name changes."""
    data = tmp_path / "data"
    (data / "metadata" / "lost+found").mkdir(parents=True)
    (data / "objects").mkdir()
    (data / "objects" / "notes").write_text("x")
    before = tree(data)
    with running("denies-puts") as store:
        refused(tmp_path, **on_bucket(store))
        assert tree(data) == before
    refused(tmp_path, s3_wal_path=f"0@file://{data}/wal?capacity=900TiB")
    assert tree(data) == before


def test_a_log_in_a_folder_that_nothing_else_makes(tmp_path: Path) -> None:
    """Metadata and objects lie elsewhere, and the log's file where the data directory would be: a first start
    makes that."""
    elsewhere = {"log.dirs": f"{tmp_path}/m", "s3.data.buckets": f"0@file://{tmp_path}/o"}
    with LiveBroker(tmp_path, {**settings(tmp_path), **elsewhere}):
        assert tree(tmp_path / "data") == ["wal"]


def test_a_folder_that_takes_no_file_of_the_log(tmp_path: Path) -> None:
    """Its name is too long, say: found before there is a cluster, and what was made goes."""
    (tmp_path / "o").mkdir()
    said = refused(
        tmp_path, s3_wal_path=f"0@file://{tmp_path}/w/{'x' * 300}", s3_data_buckets=f"0@file://{tmp_path}/o"
    )
    assert "File name too long" in said
    assert tree(tmp_path) == ["o"]


def test_a_later_start_that_is_refused_takes_nothing_back(tmp_path: Path) -> None:
    """The metadata log of a cluster that has begun stays, whatever a start meets."""
    with LiveBroker(tmp_path, settings(tmp_path)) as broker, Client(broker.address) as client:
        client.create("kept")
        client.produce("kept", [b"before"])
    before = tree(tmp_path / "data")
    with running("denies") as store:
        refused(tmp_path, **on_bucket(store))
    assert tree(tmp_path / "data") == before
    with LiveBroker(tmp_path, settings(tmp_path)) as broker, Client(broker.address) as client:
        assert client.read("kept") == [b"before"]


@pytest.mark.parametrize("free_bytes", [60 * MIB, 70 * MIB, 95 * MIB])
def test_a_disk_that_is_too_small(tmp_path: Path, free_bytes: int) -> None:
    """The log alone would fit on it, but not metadata beside it, or never an object: it is refused and left
    as it was."""
    with small_disk(tmp_path) as disk:
        ballast = disk.path / "ballast"
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, disk.free_bytes - free_bytes)
        before = tree(disk.path)
        data = f"{disk.path}/data"
        wal, objects = f"0@file://{data}/wal", f"0@file://{data}/objects"
        said = refused(tmp_path, s3_wal_path=wal, s3_data_buckets=objects, log_dirs=f"{data}/m")
        assert "no room on the disk" in said
        assert f"({170 * MIB} bytes wanted, " in said
        assert tree(disk.path) == before


def test_a_small_disk_gets_a_small_log(tmp_path: Path) -> None:
    """By default, and told with the size, what is free, and the setting; the broker works and starts again
    with the same log."""
    with small_disk(tmp_path) as disk:
        check_small_log(tmp_path, disk.path / "data")


def check_small_log(tmp_path: Path, data: Path) -> None:
    overrides = {
        "s3.wal.path": f"0@file://{data}/wal",
        "s3.data.buckets": f"0@file://{data}/objects",
        "log.dirs": f"{data}/m",
    }
    with LiveBroker(tmp_path, overrides) as broker, Client(broker.address) as client:
        (told,) = [line for line in broker.log_path.read_text().splitlines() if " is new: it takes " in line]
        assert "WARNING" in told
        assert f"WAL {data}/wal is new: it takes {64 * MIB} bytes (64 MiB) at once, of " in told
        assert told.endswith("that are free there; s3.wal.capacity gives it another size")
        client.create("t")
        client.produce("t", [b"x" * 1000] * 10)
    assert os.path.getsize(data / "wal") == 64 * MIB
    with LiveBroker(tmp_path, overrides) as broker, Client(broker.address) as client:
        assert client.read("t") == [b"x" * 1000] * 10
    assert os.path.getsize(data / "wal") == 64 * MIB
