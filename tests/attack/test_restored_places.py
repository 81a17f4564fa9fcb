"""A restored log directory beside places that do not fit it: what cannot be read of its metadata, an older
bucket, a log that was lost with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.attack.test_restore import OFTEN, restore, wait_saved
from tests.attack.test_swapped_places import (
    UPLOADS_NEVER,
    UPLOADS_OFTEN,
    broker_on,
    copy,
    produce,
    read,
    refusal,
    values,
    wait_uploaded,
    wal_at,
)
from tests.live import warm
from tests.live.client import Client

ACCEPTED = {"wal.lost.accept": "true"}


def served(tmp_path: Path, numbers: range, *settings: dict[str, str], is_new: bool = False) -> None:
    """A broker that acknowledges these, uploads them, saves its metadata in the bucket, and is killed."""
    with broker_on(tmp_path, *settings) as broker:
        if is_new:
            with Client(broker.address) as client:
                client.create("kept")
        produce(broker, numbers)
        wait_uploaded(broker)
        wait_saved(broker)
        broker.kill()


def written_last_and_damaged(
    tmp_path: Path, settings: dict[str, str]
) -> tuple[dict[Path, bytes], list[Path]]:
    """30 records of which the last 20 were uploaded and saved apart: the pieces of metadata of these as they
    were, damaged since, and their objects."""
    objects = tmp_path / "data" / "objects"
    with broker_on(tmp_path, settings) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(10))
        wait_uploaded(broker)
        wait_saved(broker)
        before = set(objects.rglob("*"))
        produce(broker, range(10, 30))
        wait_uploaded(broker)
        wait_saved(broker)
        broker.kill()
    made = [path for path in set(objects.rglob("*")) - before if path.is_file()]
    pieces = {path: path.read_bytes() for path in made if "/metadata/" in str(path)}
    data = [path for path in made if "/objects/" in str(path.relative_to(objects))]
    assert pieces
    assert data
    for path, content in pieces.items():
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return pieces, data


@pytest.mark.parametrize("kind", ["block", "object"])
def test_a_restore_from_an_older_bucket_names_what_the_log_was_trimmed_for(tmp_path: Path, kind: str) -> None:
    """The bucket is an older copy, and all that there is. The write-ahead log is the current one, and begins
    behind what the copy has as committed: 20 acknowledged records are known to be missing, and five follow
    that are in the log. Restore and start both say so; only the operator's word goes on."""
    settings = {**wal_at(tmp_path / "wal", kind), **OFTEN}
    objects = tmp_path / "data" / "objects"
    served(tmp_path, range(10), settings, is_new=True)
    copy(objects, tmp_path / "older")
    served(tmp_path, range(10, 30), settings)
    with broker_on(tmp_path, settings, UPLOADS_NEVER) as broker:
        produce(broker, range(30, 35))
        broker.kill()
    copy(tmp_path / "older", objects)
    broker = broker_on(tmp_path, settings)
    shutil.rmtree(tmp_path / "data" / "metadata")
    told = restore(tmp_path, broker, "--take-over")
    assert told.returncode == 1, told.stdout
    assert "is this an older copy?" in told.stdout
    assert "kept-0" in told.stdout
    assert "Start the node with wal.lost.accept=true for this one start" in told.stdout
    for _ in range(2):
        assert "was restored without acknowledged records" in refusal(broker)
    with broker_on(tmp_path, settings, ACCEPTED) as broker:
        said = broker.log_path.read_text()
        assert "kept-0: offsets [30, 35), which do not continue what is known, are given up" in said
        assert read(broker) == values(range(10))
        produce(broker, range(40, 42))
        broker.kill()
    with broker_on(tmp_path, settings) as broker:  # the word was for one start
        assert read(broker) == [*values(range(10)), *values(range(40, 42))]


def test_a_restore_that_cannot_read_metadata_names_partitions_and_the_start_waits_for_a_word(
    tmp_path: Path,
) -> None:
    """The last piece of metadata in the bucket rots, and names objects whose records nobody finds now."""
    settings = {**wal_at(tmp_path / "wal", "object"), **OFTEN}
    whole, _ = written_last_and_damaged(tmp_path, settings)
    broker = broker_on(tmp_path, settings)
    shutil.rmtree(tmp_path / "data" / "metadata")
    told = restore(tmp_path, broker, "--take-over")
    assert told.returncode == 1, told.stdout
    assert "kept-0: offsets from 10 on: what was committed by metadata that cannot be had" in told.stdout
    assert "was restored without acknowledged records" in refusal(broker)
    for path, content in whole.items():  # a copy of it is found
        path.write_bytes(content)
    shutil.rmtree(tmp_path / "data" / "metadata")
    assert restore(tmp_path, broker, "--take-over").returncode == 0
    with broker_on(tmp_path, settings) as broker:
        assert read(broker) == values(range(30))


def test_a_log_that_the_bucket_does_not_know_yet_is_recovered(tmp_path: Path) -> None:
    """The node was stopped in order, went on with another write-ahead log, and lost its log directory before
    the bucket was told of that log, which is there."""
    rarely = {"s3.metadata.upload.interval.ms": "600000"}
    with broker_on(tmp_path, wal_at(tmp_path / "a"), UPLOADS_OFTEN, rarely) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(10))
        assert broker.stop() == 0
    settings = {**wal_at(tmp_path / "b"), **UPLOADS_NEVER, **rarely}
    with broker_on(tmp_path, settings) as broker:
        produce(broker, range(10, 20))
        broker.kill()
    shutil.rmtree(tmp_path / "data" / "metadata")
    broker = broker_on(tmp_path, settings)
    told = restore(tmp_path, broker, "--take-over")
    assert told.returncode == 0, told.stdout
    assert "which the bucket does not know yet, is there, and is recovered" in told.stdout
    with broker_on(tmp_path, settings) as broker:
        assert read(broker) == values(range(20))


@pytest.mark.parametrize("kind", ["block", "object"])
def test_fsck_deletes_no_object_that_unreadable_metadata_may_name(tmp_path: Path, kind: str) -> None:
    """The newest pieces of metadata in the bucket are damaged: a restore says so and goes on without. Objects
    that they name look like orphans to the restored directory, and are not: with the pieces put back from a
    copy all is there."""
    settings = {**wal_at(tmp_path / "wal", kind), **OFTEN}
    _, data = written_last_and_damaged(tmp_path, settings)
    shutil.rmtree(tmp_path / "data" / "metadata")
    broker = broker_on(tmp_path, settings)
    told = restore(tmp_path, broker, "--take-over")
    assert told.returncode == 1, told.stdout
    assert "cannot be had" in told.stdout
    words = broker.command()
    asked = words[words.index("serve") + 1 :]
    warm.run(["-m", "millrace.broker", "fsck", *asked, "--delete-orphans", "--grace-minutes", "0"])
    left = [path.name for path in data if path.exists()]
    assert left == [path.name for path in data], "objects that hold acknowledged records were deleted"


def test_a_bucket_that_is_older_than_the_one_restored_from_is_refused(tmp_path: Path) -> None:
    """Restored from the current bucket, started on an older copy by mistake: refused before the write-ahead
    log is emptied into that copy; on the current one everything is there."""
    settings = {**wal_at(tmp_path / "wal"), **OFTEN}
    objects = tmp_path / "data" / "objects"
    served(tmp_path, range(10), settings, is_new=True)
    copy(objects, tmp_path / "older")
    served(tmp_path, range(10, 30), settings)
    with broker_on(tmp_path, settings, UPLOADS_NEVER) as broker:
        produce(broker, range(30, 35))
        wait_saved(broker)
        broker.kill()
    shutil.rmtree(tmp_path / "data" / "metadata")
    broker = broker_on(tmp_path, settings)
    assert restore(tmp_path, broker, "--take-over").returncode == 0
    copy(objects, tmp_path / "current")
    copy(tmp_path / "older", objects)
    assert "it is an older copy, or another one" in refusal(broker)
    shutil.rmtree(objects)
    copy(tmp_path / "current", objects)
    with broker_on(tmp_path, settings) as broker:  # the mistake is mended
        assert read(broker) == values(range(35))


def test_a_lost_log_of_blocks_that_followed_one_of_objects_is_not_passed_over(tmp_path: Path) -> None:
    """The node was stopped in order and went on with another write-ahead log, which is lost with the log
    directory before the bucket knows of it. That the bucket knows the first one, of objects, tells nothing of
    the second."""
    rarely = {"s3.metadata.upload.interval.ms": "600000"}
    with broker_on(tmp_path, wal_at(tmp_path / "a", "object"), UPLOADS_OFTEN, rarely) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(10))
        assert broker.stop() == 0
    settings = {**wal_at(tmp_path / "b"), **UPLOADS_NEVER, **rarely}
    with broker_on(tmp_path, settings) as broker:
        produce(broker, range(10, 20))
        broker.kill()
    shutil.rmtree(tmp_path / "data" / "metadata")
    (tmp_path / "b").unlink()
    broker = broker_on(tmp_path, settings)
    told = restore(tmp_path, broker, "--take-over")
    assert told.returncode == 1, told.stdout  # as when both logs are on a disk
