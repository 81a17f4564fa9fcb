"""Swapped, restored and older places: log directory, WAL and bucket that do not belong to each other, or are
not of one age.

Each start that would lose or exchange acknowledged records is refused with one sentence that names the
remedy, changes nothing, and the right places start again with everything. What cannot be seen is shown too.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from pathlib import Path

import pytest

from millrace.broker.identity.binding import MARKER_KEY
from millrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.attack import IS_FULL
from tests.live import LiveBroker, warm
from tests.live.client import LATEST, Client
from tests.patience import PATIENCE_S

UPLOADS_OFTEN = {"s3.wal.upload.interval.ms": "200"}
UPLOADS_NEVER = {"s3.wal.upload.interval.ms": "3600000"}


def wal_at(path: Path, kind: str = "block") -> dict[str, str]:
    address = f"0@file://{path}?capacity=16MiB" if kind == "block" else f"0@file://{path}/?capacity=16MiB"
    return {"s3.wal.path": address}


def broker_on(folder: Path, *settings: dict[str, str]) -> LiveBroker:
    merged: dict[str, str] = {}
    for some in settings:
        merged |= some
    return LiveBroker(folder, merged, is_warm=True)


def refusal(broker: LiveBroker) -> str:
    """The one sentence of a start that fails."""
    ended = warm.run(broker.command()[1:])
    assert ended.returncode == 1, ended.stderr
    told = [line for line in ended.stderr.splitlines() if line.startswith("millrace:")]
    assert len(told) == 1, ended.stderr
    return told[0]


def digest(*places: Path) -> str:
    """Of every file below the places, its name and bytes; what a lock or a log line touches is left out."""
    found = hashlib.sha256()
    for place in places:
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in files:
            if path.is_file() and path.name not in (".lock", "metadata.reserve"):
                found.update(str(path).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def produce(broker: LiveBroker, names: range, topic: str = "kept") -> None:
    with Client(broker.address) as client:
        for name in names:
            client.produce(topic, [f"record {name}".encode()])


def values(names: range) -> list[bytes]:
    return [f"record {name}".encode() for name in names]


def read(broker: LiveBroker, topic: str = "kept") -> list[bytes]:
    with Client(broker.address) as client:
        return client.read(topic)


def wait_uploaded(broker: LiveBroker) -> None:
    """Everything acknowledged is in objects, and the WAL is trimmed."""
    deadline = time.monotonic() + PATIENCE_S
    while broker.metrics()["millrace_wal_used_bytes"] > 0:
        assert time.monotonic() < deadline, "the WAL is not trimmed"
        time.sleep(0.05)


PAIRS = [("block", "object"), ("object", "block"), *([("block", "block")] if IS_FULL else [])]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_an_earlier_wal_is_refused_while_streams_are_open_in_a_later_one(
    tmp_path: Path, first: str, second: str
) -> None:
    """Run on A, stop, run on B, kill -9, start on A: refused, and B still has everything."""
    one, two = wal_at(tmp_path / "a", first), wal_at(tmp_path / "b", second)
    with broker_on(tmp_path, one, UPLOADS_NEVER) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(10))
        assert broker.stop() == 0
    with broker_on(tmp_path, two, UPLOADS_NEVER) as broker:
        produce(broker, range(10, 30))
        broker.kill()
    before = digest(tmp_path / "a", tmp_path / "b", tmp_path / "data")
    said = refusal(broker_on(tmp_path, one))
    assert "is not the one that this node wrote last, " in said
    assert str(tmp_path / "b") in said
    assert "wal.lost.accept" in said
    assert digest(tmp_path / "a", tmp_path / "b", tmp_path / "data") == before
    with broker_on(tmp_path, two) as broker:
        assert read(broker) == values(range(30))
        assert broker.stop() == 0
    with broker_on(tmp_path, one) as broker:  # everything is in objects: any empty WAL will do
        assert read(broker) == values(range(30))


def copy(source: Path, target: Path) -> None:
    """In its place, whole."""
    if target.is_dir():
        shutil.rmtree(target)
    if source.is_dir():
        # What its owner trims meanwhile is not in the copy.
        names = {str(path.relative_to(source)) for path in source.rglob("*")}
        for name in sorted(names):
            at = target / name
            if (source / name).is_dir():
                at.mkdir(parents=True, exist_ok=True)
                continue
            at.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(source / name, at)
    else:
        shutil.copy(source, target)


@pytest.mark.parametrize("kind", ["block", "object"])
def test_an_older_copy_of_the_wal_is_refused(tmp_path: Path, kind: str) -> None:
    """Restored from a snapshot that was made in an earlier owner's time, when all had been uploaded: refused
    by its owner's epoch, for by the positions that metadata knows it may be the current one."""
    wal = tmp_path / "wal"
    settings = {**wal_at(wal, kind), **UPLOADS_OFTEN}
    with broker_on(tmp_path, settings) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(10))
        wait_uploaded(broker)
        broker.kill()
    copy(wal, tmp_path / "older")
    with broker_on(tmp_path, settings, UPLOADS_NEVER) as broker:
        produce(broker, range(10, 30))
        broker.kill()
    copy(wal, tmp_path / "current")
    copy(tmp_path / "older", wal)
    before = digest(wal, tmp_path / "data")
    assert "is an older copy: its last owner had epoch" in refusal(broker_on(tmp_path, settings))
    assert digest(wal, tmp_path / "data") == before
    copy(tmp_path / "current", wal)
    with broker_on(tmp_path, settings) as broker:
        assert read(broker) == values(range(30))


@pytest.mark.parametrize("kind", ["block", "object"])
def test_an_older_copy_of_the_wal_of_one_owner_is_refused(tmp_path: Path, kind: str) -> None:
    """Copied while its owner was at work, which acknowledged and uploaded more and was killed: the log ends
    below what is committed."""
    wal = tmp_path / "wal"
    settings = {**wal_at(wal, kind), **UPLOADS_OFTEN}
    with broker_on(tmp_path, settings) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(10))
        wait_uploaded(broker)
        copy(wal, tmp_path / "older")
        produce(broker, range(10, 30))
        wait_uploaded(broker)
        produce(broker, range(30, 40))
        broker.kill()
    copy(wal, tmp_path / "current")
    copy(tmp_path / "older", wal)
    said = refusal(broker_on(tmp_path, settings))
    assert "and metadata has it committed up to" in said
    assert "it is an older copy" in said
    copy(tmp_path / "current", wal)
    with broker_on(tmp_path, settings) as broker:
        assert read(broker) == values(range(40))


@pytest.mark.parametrize("kind", ["block", "object"] if IS_FULL else ["block"])
def test_an_older_copy_that_was_accepted_goes_on_and_the_current_one_is_the_older_then(
    tmp_path: Path, kind: str
) -> None:
    """The word is said for one start. When the current volume is found after all, what it alone held is not
    given the place of what was acknowledged since: a second word loses both, and consumers that read either
    notice."""
    wal = tmp_path / "wal"
    settings = {**wal_at(wal, kind), **UPLOADS_OFTEN}
    accepting = {"wal.lost.accept": "true"}
    with broker_on(tmp_path, settings) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(10))
        wait_uploaded(broker)
        broker.kill()
    copy(wal, tmp_path / "older")
    with broker_on(tmp_path, settings) as broker:
        produce(broker, range(10, 60))
        wait_uploaded(broker)
        broker.kill()
    with broker_on(tmp_path, settings, UPLOADS_NEVER) as broker:
        produce(broker, range(60, 80))
        broker.kill()
    copy(wal, tmp_path / "current")
    copy(tmp_path / "older", wal)
    assert "is an older copy: its last owner had epoch" in refusal(broker_on(tmp_path, settings))
    with broker_on(tmp_path, settings, UPLOADS_NEVER, accepting) as broker:
        produce(broker, range(100, 105))
        broker.kill()
    with broker_on(tmp_path, settings, UPLOADS_NEVER) as broker:
        assert read(broker) == values([*range(60), *range(100, 105)])  # type: ignore[arg-type]
        produce(broker, range(105, 110))
        epoch = leader_epochs(broker)["kept"]
        broker.kill()
    copy(tmp_path / "current", wal)
    assert "is an older copy: its last owner had epoch" in refusal(broker_on(tmp_path, settings))
    with broker_on(tmp_path, settings, UPLOADS_NEVER, accepting) as broker:
        assert read(broker) == values([*range(60), *range(100, 105)])  # type: ignore[arg-type]
        assert epoch_end(broker, "kept", epoch) == 65
        assert "kept-0: records from offset 65 on" in broker.log_path.read_text()
        broker.kill()
    with broker_on(tmp_path, settings) as broker:
        assert len(read(broker)) == 65


@pytest.mark.parametrize("kind", ["block"])
def test_an_older_copy_of_the_log_directory_is_refused(tmp_path: Path, kind: str) -> None:
    """Copied, more acknowledged and uploaded, killed, the copy put back: refused, by a bucket that has lost
    its marker too, and the current directory has everything."""
    settings = {**wal_at(tmp_path / "wal", kind), **UPLOADS_OFTEN}
    logs = tmp_path / "data" / "metadata"
    with broker_on(tmp_path, settings) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(10))
        wait_uploaded(broker)
        shutil.copytree(logs, tmp_path / "older")
        produce(broker, range(10, 60))
        wait_uploaded(broker)
        broker.kill()
    logs.rename(tmp_path / "current")
    shutil.copytree(tmp_path / "older", logs)
    before = digest(tmp_path / "wal", logs, tmp_path / "data")
    said = refusal(broker_on(tmp_path, settings))
    assert "metadata log is older than" in said
    assert "millrace restore" in said
    assert digest(tmp_path / "wal", logs, tmp_path / "data") == before
    marker = tmp_path / "data" / "objects" / MARKER_KEY
    marker.rename(tmp_path / "marker")
    assert f"metadata log is older than 0@file://{tmp_path}/data/objects" in refusal(
        broker_on(tmp_path, settings)
    )
    (tmp_path / "marker").rename(marker)
    shutil.rmtree(logs)
    (tmp_path / "current").rename(logs)
    with broker_on(tmp_path, settings) as broker:
        assert read(broker) == values(range(60))


@pytest.mark.parametrize("kind", ["block", "object"])
def test_an_older_log_directory_beside_an_older_bucket_is_refused(tmp_path: Path, kind: str) -> None:
    """Both were put back from one moment and fit each other; the write-ahead log went on, and was trimmed for
    what they lack."""
    wal, logs, objects = tmp_path / "wal", tmp_path / "data" / "metadata", tmp_path / "data" / "objects"
    settings = {**wal_at(wal, kind), **UPLOADS_OFTEN}
    with broker_on(tmp_path, settings) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(10))
        wait_uploaded(broker)
        for place in (logs, objects):
            copy(place, tmp_path / "older" / place.name)
        produce(broker, range(10, 30))
        wait_uploaded(broker)
        broker.kill()
    for place in (logs, objects):
        copy(place, tmp_path / "current" / place.name)
        copy(tmp_path / "older" / place.name, place)
    before = digest(wal, tmp_path / "data")
    said = refusal(broker_on(tmp_path, settings))
    assert f"the metadata log is older than the WAL {wal}" in said
    assert "put the current metadata log directory back" in said
    assert digest(wal, tmp_path / "data") == before
    for place in (logs, objects):
        copy(tmp_path / "current" / place.name, place)
    with broker_on(tmp_path, settings) as broker:
        assert read(broker) == values(range(30))


def test_an_accepted_loss_raises_leader_epochs_and_says_what_is_given_up(tmp_path: Path) -> None:
    """Offsets are given again, under a higher leader epoch; the start names partition and offset."""
    wal = tmp_path / "wal"
    settings = {**wal_at(wal), **UPLOADS_OFTEN}
    with broker_on(tmp_path, settings) as broker:
        with Client(broker.address) as client:
            client.create("kept")
            client.create("closed")
        produce(broker, range(10))
        wait_uploaded(broker)
        broker.kill()
    lost = broker_on(tmp_path, settings, UPLOADS_NEVER)
    with lost as broker:
        produce(broker, range(10, 20))
        before = leader_epochs(broker)
        broker.kill()
    wal.unlink()
    assert "is new, but" in refusal(lost)
    with broker_on(tmp_path, settings, {"wal.lost.accept": "true"}) as broker:
        after = leader_epochs(broker)
        assert after["kept"] == before["kept"] + 1
        assert after["closed"] == before["closed"], "nothing of it was open"
        with Client(broker.address) as client:
            assert client.offset("kept", LATEST) == 10
        said = broker.log_path.read_text()
        assert (
            "kept-0: records from offset 10 on that were in the WAL alone are given up; leader epoch is now "
            f"{after['kept']}"
        ) in said
        produce(broker, range(50, 55))
        broker.kill()
    with broker_on(tmp_path, settings) as broker:
        assert read(broker) == values(range(10)) + values(range(50, 55))


def leader_epochs(broker: LiveBroker) -> dict[str, int]:
    from millrace.protocol.messages.metadata import MetadataRequest

    with Client(broker.address) as client:
        topics = client.ask("Metadata", MetadataRequest(topics=None), 12).topics
        return {topic.name or "": topic.partitions[0].leader_epoch for topic in topics}


def epoch_end(broker: LiveBroker, topic: str, epoch: int) -> int:
    """Where a consumer that read under that leader epoch is told that it ended."""
    asked = OffsetForLeaderTopic(topic, [OffsetForLeaderPartition(0, -1, epoch)])
    with Client(broker.address) as client:
        answer = client.ask("OffsetForLeaderEpoch", OffsetForLeaderEpochRequest(-1, [asked]), 4)
    return int(answer.topics[0].partitions[0].end_offset)


def test_records_of_a_wal_that_was_given_up_never_come_back(tmp_path: Path) -> None:
    """Its offsets were given to others since: such a WAL is refused even when every stream is closed, or
    emptied when that is accepted."""
    one, two = wal_at(tmp_path / "a"), wal_at(tmp_path / "b")
    with broker_on(tmp_path, one, UPLOADS_NEVER) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(10))
        broker.kill()
    with broker_on(tmp_path, two, {"wal.lost.accept": "true"}) as broker:
        produce(broker, range(50, 55))
        assert broker.stop() == 0
    assert "holds records of an earlier time" in refusal(broker_on(tmp_path, one))
    with broker_on(tmp_path, two) as broker:
        assert broker.stop() == 0
    with broker_on(tmp_path, one, {"wal.lost.accept": "true"}) as broker:
        assert read(broker) == values(range(50, 55))
        said = broker.log_path.read_text()
        given_up = "kept-0: offsets [0, 10) of an earlier time are given up"
        assert f"WAL loss accepted: WAL {tmp_path / 'a'}: {given_up}" in said
        assert said.count(" of an earlier time are given up") == 1
        produce(broker, range(60, 62))
        broker.kill()
    with broker_on(tmp_path, one) as broker:
        assert read(broker) == values([*range(50, 55), *range(60, 62)])  # type: ignore[arg-type]


def test_a_copy_of_the_wal_after_the_last_commit_is_not_seen(tmp_path: Path) -> None:
    """The window that is left: nothing was written anywhere else since the copy, so nobody can tell. What
    came after it is lost."""
    wal = tmp_path / "wal"
    settings = {**wal_at(wal), **UPLOADS_NEVER}
    with broker_on(tmp_path, settings) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(5))
        shutil.copy(wal, tmp_path / "copy")
        produce(broker, range(5, 10))
        broker.kill()
    shutil.copy(tmp_path / "copy", wal)
    with broker_on(tmp_path, settings) as broker:
        assert read(broker) == values(range(5))
