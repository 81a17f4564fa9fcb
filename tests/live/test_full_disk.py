"""A disk that fills up under the broker: WAL, objects and metadata on one small ext4, mounted from an image.

Where nothing may be mounted the tests are left out, and a warning says why; what they rest on is also shown
without a mount, in tests/s3stream/test_storage.py (room for small states) and
tests/runtime/objectstore/test_local.py (room that objects leave).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.live import LiveBroker
from tests.live.client import EARLIEST, LATEST, MIB, Client
from tests.live.small_disk import CannotMount, SmallDisk
from tests.live.test_s3 import ready_page
from tests.patience import PATIENCE_S, until

TIMED_OUT, STORAGE_ERROR = 7, 56
DISK_BYTES = 192 * MIB
BALLAST_BYTES = 56 * MIB
VALUE_BYTES = 500_000
LITTLE = b"a little" * 10
# More than the log holds: they pass only if uploads go on.
AFTER_COUNT = 80


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path, DISK_BYTES)
    try:
        made.__enter__()
    except CannotMount as reason:
        warnings.warn(f"no test of a full disk: {reason}", stacklevel=1)
        pytest.skip(str(reason))
    yield made
    made.__exit__(None, None, None)


def on_disk(folder: Path, disk: SmallDisk) -> LiveBroker:
    settings = {
        "s3.data.buckets": f"0@file://{disk.path}/objects",
        "s3.wal.path": f"0@file://{disk.path}/wal?capacity=24MiB",
        "log.dirs": f"{disk.path}/meta",
        "s3.wal.upload.interval.ms": "100",
        "s3.object.delete.retention.minutes": "0",
        "log.retention.check.interval.ms": "300",
    }
    return LiveBroker(folder, settings)


def take_all(disk: SmallDisk, name: str) -> None:
    """Takes whatever room is left, as somebody else's file."""
    with (disk.path / name).open("ab", buffering=0) as file:
        for size_bytes in (MIB, 4096):
            try:
                while True:
                    file.write(bytes(size_bytes))
            except OSError:
                pass


def fill(broker: LiveBroker, client: Client, topic: str, beside: Sequence[str] = ()) -> list[bytes]:
    """Produces until a batch waits in vain for room that the disk does not have; what was acknowledged, by
    offset. (On a busy machine one waits in vain for an upload that is slow, too: the disk has room then, and
    deletions make less than uploads need.) `beside`: topics that get a small record with each batch,
    acknowledged or not."""
    taken: list[bytes] = []
    for _ in range(4 * DISK_BYTES // VALUE_BYTES):
        for other in beside:
            client.send(other, [LITTLE], timeout_ms=1000)
        value = os.urandom(VALUE_BYTES)
        answer = client.send(topic, [value], timeout_ms=1000)
        if answer.error_code:
            assert answer.error_code == TIMED_OUT
            if "StoreFull" in ready_page(broker):
                return taken
            continue
        assert answer.base_offset == len(taken)
        taken.append(value)
    raise AssertionError("the disk did not fill")


def grow_metadata(client: Client) -> str:
    """Makes topics until one is refused; why."""
    for number in range(5000):
        try:
            client.create(f"small{number}")
        except AssertionError as refused:
            return str(refused)
    raise AssertionError("the metadata log did not fill")


def test_a_full_disk_holds_up_producers_and_takes_deletions(tmp_path: Path, disk: SmallDisk) -> None:
    """Producers wait or are told to try again, nothing acknowledged is lost; deletions and retention make
    room, also when there is none at all for metadata; then uploads go on."""
    with on_disk(tmp_path / "broker", disk) as broker, Client(broker.address) as client:
        client.create("fill")
        client.create("doomed")
        client.create("aged", retention_ms=6000)
        for _ in range(6):
            client.produce("aged", [os.urandom(VALUE_BYTES)])
            client.produce("doomed", [os.urandom(VALUE_BYTES)])
        taken = fill(broker, client, "fill")
        take_all(disk, "filler")
        told: list[object] = []
        # Its one request waits for as long as it takes: sent again, it would be answered whoever was woken.
        waits = {"request.timeout.ms": 300_000, "socket.timeout.ms": 300_000, "message.timeout.ms": 900_000}
        patient = Producer({"bootstrap.servers": broker.address, "log_level": 0, **waits})
        patient.produce("fill", b"patience", on_delivery=lambda error, _: told.append(error))
        patient.poll(0)
        assert "full" in grow_metadata(client)
        assert client.delete("doomed") == 0
        start = len(taken) * 3 // 4
        assert client.delete_records("fill", start) == 0
        assert client.offset("fill", EARLIEST) == start
        until(lambda: client.offset("aged", EARLIEST) == client.offset("aged", LATEST))
        until(lambda: ready_page(broker) == "ready\n")
        assert patient.flush(PATIENCE_S) == 0
        assert told == [None]
        kept = taken[start:]
        assert client.read("fill", start=start)[: len(kept)] == kept
        broker.kill()
        broker.start()
        with Client(broker.address) as after:
            values = after.read("fill", start=start)
            assert values[: len(kept)] == kept
            assert b"patience" in values[len(kept) :]


def test_a_deletion_that_leaves_a_little_in_every_object_makes_room(tmp_path: Path, disk: SmallDisk) -> None:
    """Most of a topic is deleted whose records share every upload with a few bytes of others: what is left of
    those uploads is written anew at once, though compaction's own intervals are minutes, uploads go on, and
    all that was acknowledged is there."""
    others = [f"other{number}" for number in range(4)]
    with on_disk(tmp_path / "broker", disk) as broker, Client(broker.address) as client:
        for topic in ("fill", *others):
            client.create(topic)
        taken = fill(broker, client, "fill", others)
        ends = [client.offset(topic, LATEST) for topic in others]
        start = len(taken) * 3 // 4
        assert client.delete_records("fill", start) == 0
        until(lambda: ready_page(broker) == "ready\n")
        for _ in range(AFTER_COUNT):
            client.produce("fill", [os.urandom(VALUE_BYTES)])
        assert client.read("fill", start=start)[: len(taken) - start] == taken[start:]
        for topic, end in zip(others, ends, strict=True):
            assert client.read(topic)[:end] == [LITTLE] * end


def test_a_start_without_room_for_metadata_says_so(tmp_path: Path, disk: SmallDisk) -> None:
    """The log directory alone is on a full disk, and the WAL holds records, whose uploads need ids: the start
    says at once that it waits for that disk, and goes on once there is room."""
    folder = tmp_path / "broker"
    settings = {"log.dirs": f"{disk.path}/meta", "s3.wal.upload.interval.ms": "600000"}
    with LiveBroker(folder, settings, wal="64MiB") as broker:
        with Client(broker.address) as client:
            client.create("t")
            client.produce("t", [b"kept"])
            take_all(disk, "filler")
            assert "full" in grow_metadata(client)
        broker.kill()
        broker.begin()
        full = "recovering what the WAL holds (PrepareObjectsRequest: The disk of the metadata log is full"
        until(lambda: full in ready_page(broker))
        (disk.path / "filler").unlink()
        broker.wait_ready()
        with Client(broker.address) as client:
            assert client.read("t") == [b"kept"]


def test_a_start_on_a_full_disk_waits_for_room(tmp_path: Path, disk: SmallDisk) -> None:
    """Killed while the disk is full, started while it is: the start says what it waits for, and goes on once
    there is room."""
    ballast = disk.path / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    with on_disk(tmp_path / "broker", disk) as broker:
        with Client(broker.address) as client:
            client.create("fill")
            taken = fill(broker, client, "fill")
        broker.kill()
        broker.begin()
        until(lambda: "recovering what the WAL holds" in (page := ready_page(broker)) and "StoreFull" in page)
        ballast.unlink()
        broker.wait_ready()
        with Client(broker.address) as client:
            assert client.read("fill")[: len(taken)] == taken
            assert client.send("fill", [b"after"]).error_code == 0
