"""Bytes that rot under the broker: in objects, in the WAL, in the metadata log. What is damaged is refused by
name, the rest goes on.

A start that refuses changes nothing: the same files, mended, start and hold everything.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.test_s3 import ready_page
from tests.patience import PATIENCE_S, until

STORAGE_ERROR = 56
MIB = 1 << 20
METADATA = Path("metadata/__cluster_metadata-0")


def broker_on(folder: Path, **settings: object) -> LiveBroker:
    return LiveBroker(
        folder, {name.replace("_", "."): str(value) for name, value in settings.items()}, wal="8MiB"
    )


def flip(path: Path, position: int) -> None:
    """One bit; a second time it mends."""
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def place_of(folder: Path, content: bytes) -> tuple[Path, int]:
    """The object that holds these bytes, and where."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (position := path.read_bytes().find(content)) >= 0:
            return path, position
    raise AssertionError("no object holds it")


def test_a_damaged_object_fails_only_who_needs_it(tmp_path: Path) -> None:
    """A byte flipped in one partition's block: its reads are answered with an error at once, and other
    partitions are read, in the same request and from the same object; then the object is gone: other objects
    are read. Mended, all is read, without a restart."""
    values = {name: os.urandom(100_000) for name in ("hurt", "sound", "later")}
    with broker_on(tmp_path) as broker:
        with Client(broker.address) as client:
            for topic in ("hurt", "sound"):
                client.create(topic)
                client.produce(topic, [values[topic]])
        broker.restart()
        with Client(broker.address) as client:
            client.produce("hurt", [values["later"]])
        path, position = place_of(tmp_path / "data" / "objects", values["hurt"])
        broker.restart()
        with Client(broker.address) as client:
            flip(path, position + 50_000)
            answers = client.fetch([("hurt", 0, 0), ("sound", 0, 0)])
            assert answers["hurt", 0].error_code == STORAGE_ERROR
            assert b"".join([answers["sound", 0].records or b""]).find(values["sound"]) > 0
            assert client.read("hurt", start=1) == [values["later"]]
            client.produce("hurt", [b"it still takes records"])
            flip(path, position + 50_000)
            assert client.read("hurt")[:2] == [values["hurt"], values["later"]]
        broker.restart()
        with Client(broker.address) as client:
            assert client.read("hurt", start=1)[0] == values["later"]  # the partition is open
            away = path.with_name(".away")
            path.rename(away)
            assert client.fetch([("hurt", 0, 0)])["hurt", 0].error_code == STORAGE_ERROR
            assert client.fetch([("sound", 0, 0)])["sound", 0].error_code == STORAGE_ERROR
            assert client.read("hurt", start=1)[0] == values["later"]
            away.rename(path)
            assert client.read("hurt")[0] == values["hurt"]
            until(lambda: client.fetch([("sound", 0, 0)])["sound", 0].error_code == 0)
            assert client.read("sound") == [values["sound"]]


def test_damage_and_its_repair_are_logged_and_shown_in_metrics(tmp_path: Path) -> None:
    """A byte of a stored block is flipped: fetches of it count as damaged reads, and one line names the
    partition, the offsets and the remedy. The byte is put back: the next fetch says so, and no partition is
    unreadable."""
    values = [os.urandom(50_000) for _ in range(3)]
    unreadable, failed = "millrace_broker_unreadable_partitions", "millrace_broker_damaged_reads_total"
    with broker_on(tmp_path) as broker:
        with Client(broker.address) as client:
            client.create("orders")
            for value in values:
                client.produce("orders", [value])
        broker.restart()
        path, position = place_of(tmp_path / "data" / "objects", values[1])
        flip(path, position)
        with Client(broker.address) as client:
            assert (broker.metrics()[unreadable], broker.metrics()[failed]) == (0, 0)
            for _ in range(2):
                assert client.fetch([("orders", 0, 1)])["orders", 0].error_code == STORAGE_ERROR
            assert (broker.metrics()[unreadable], broker.metrics()[failed]) == (1, 2)
            said = [line for line in broker.log_path.read_text().splitlines() if "damaged data" in line]
            assert len(said) == 1, said
            assert (
                "orders-0 offsets 0 to 2 cannot be read: object "
                f"{path.relative_to(tmp_path / 'data/objects')}"
            ) in said[0]
            assert "millrace fsck" in said[0]
            assert "go on at offset 3" in said[0]
            flip(path, position)
            assert client.read("orders") == values
            assert (broker.metrics()[unreadable], broker.metrics()[failed]) == (0, 2)
            said = [
                line
                for line in broker.log_path.read_text().splitlines()
                if "damaged data was repaired" in line
            ]
            assert len(said) == 1, said
            assert "orders-0 offsets 0 to 2 can be read again" in said[0]


def killed_in_objects(folder: Path) -> tuple[list[bytes], Path]:
    """The records of a topic in two objects, of which no checkpoint tells, behind a kill; and the object of
    the first two."""
    values = [os.urandom(50_000) for _ in range(4)]
    with broker_on(folder) as broker:
        with Client(broker.address) as client:
            client.create("orders")
            for value in values[:2]:
                client.produce("orders", [value])
        broker.kill()
        broker.start()
        with Client(broker.address) as client:
            for value in values[2:]:
                client.produce("orders", [value])
        broker.kill()
        broker.start()  # what was in the log alone is uploaded
        broker.kill()
    return values, place_of(folder / "data" / "objects", values[0])[0]


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_damage_that_no_checkpoint_covers_costs_its_own_offsets(tmp_path: Path, how: str) -> None:
    """A broker is killed, and an object is damaged, or gone, that an opening reads to know producers: all
    else of the partition is read, and it takes no batch. With the operator's word it does, then and in later
    starts. The object that is put back is read."""
    values, path = killed_in_objects(tmp_path)
    whole = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        flip(path, place_of(tmp_path / "data" / "objects", values[0])[1])
    with broker_on(tmp_path) as broker, Client(broker.address) as client:
        assert client.fetch([("orders", 0, 0)])["orders", 0].error_code == STORAGE_ERROR
        assert client.read("orders", start=2) == values[2:]
        with pytest.raises(
            AssertionError, match=f"error_code={STORAGE_ERROR}.*offsets 0 to 1 of orders-0 cannot be read"
        ):
            client.produce("orders", [b"refused"])
        said = [
            line
            for line in broker.log_path.read_text().splitlines()
            if "damaged data stops producers" in line
        ]
        assert len(said) == 1, said
        assert "orders-0 offsets 0 to 1 cannot be read" in said[0]
        assert "objects.corruption=skip" in said[0]
        assert broker.metrics()["millrace_broker_unreadable_partitions"] == 1
        broker.kill()
    with broker_on(tmp_path, objects_corruption="skip") as broker, Client(broker.address) as client:
        assert client.produce("orders", [b"taken"]) == 4
        assert "damaged data was given up: orders-0 offsets 0 to 1" in broker.log_path.read_text()
        broker.kill()
    with broker_on(tmp_path) as broker, Client(broker.address) as client:
        assert client.produce("orders", [b"later"]) == 5
        assert client.fetch([("orders", 0, 0)])["orders", 0].error_code == STORAGE_ERROR
        path.write_bytes(whole)
        until(lambda: client.fetch([("orders", 0, 0)])["orders", 0].error_code == 0)
        assert client.read("orders") == [*values, b"taken", b"later"]


def test_a_repair_gives_producers_their_partition_back(tmp_path: Path) -> None:
    """As above, and the object is put back while the broker runs: it takes batches without a restart."""
    values, path = killed_in_objects(tmp_path)
    away = path.with_name(".away")
    path.rename(away)
    with broker_on(tmp_path) as broker, Client(broker.address) as client:
        assert not is_taken(client, b"refused")
        away.rename(path)
        until(lambda: is_taken(client, b"taken"))
        assert client.read("orders") == [*values, b"taken"]
        assert broker.metrics()["millrace_broker_unreadable_partitions"] == 0


def is_taken(client: Client, value: bytes) -> bool:
    try:
        client.produce("orders", [value])
    except AssertionError as refusal:
        if f"error_code={STORAGE_ERROR}" not in str(refusal):
            raise
        return False
    return True


class Case:
    """A start on a copy of the data, damaged: the process, and what its files were."""

    def __init__(
        self, name: str, source: Path, folder: Path, damage: Callable[[Path], object], **settings: object
    ) -> None:
        self.name = name
        self.folder = folder / name
        shutil.copytree(source, self.folder / "data")
        damage(self.folder / "data")
        self.before = held(self.folder / "data")
        self.broker = broker_on(self.folder, **settings)
        self.process = subprocess.Popen(
            self.broker.command(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def check_refused(self, *words: str) -> None:
        said = self.process.communicate(timeout=PATIENCE_S)[1].decode()
        last = said.splitlines()[-1]
        assert self.process.returncode == 1, (self.name, said)
        assert last.startswith("millrace: cannot start: "), (self.name, said)
        assert all(word in last for word in words), (self.name, last)
        assert "Traceback" not in said, (self.name, said)
        assert held(self.folder / "data") == self.before, self.name

    def check_ready(self) -> None:
        """It starts; then it is killed."""
        try:
            until(lambda: ready_page(self.broker) == "ready\n")
        finally:
            self.process.kill()
            self.process.communicate()


def held(folder: Path) -> dict[str, bytes]:
    """WAL and objects. The metadata log, and what the bucket has of it and of owners, may hear of a start
    that then fails."""
    files = [folder / "wal", *sorted((folder / "objects").rglob("*"))]
    kept = [path for path in files if path.is_file() and not {"owners", "metadata"} & {*path.parts}]
    return {path.name: path.read_bytes() for path in kept}


def killed_broker(folder: Path, **settings: object) -> tuple[Path, dict[str, list[bytes]]]:
    """The data of a broker that was killed with records in its WAL alone."""
    values = {"a": [os.urandom(20_000) for _ in range(10)], "b": [os.urandom(100) for _ in range(10)]}
    with broker_on(folder, **settings) as broker, Client(broker.address) as client:
        for topic in values:
            client.create(topic)
        for place in range(10):
            for topic in values:
                client.produce(topic, [values[topic][place]])
        broker.kill()
    return folder / "data", values


def check_whole(folder: Path, values: dict[str, list[bytes]]) -> None:
    with broker_on(folder) as broker, Client(broker.address) as client:
        assert {topic: client.read(topic) for topic in values} == values


def test_a_damaged_wal_refuses_the_start(tmp_path: Path) -> None:
    """A byte below what was confirmed, a file cut short, both headers: refused with the place, nothing
    changed. One header of two is enough, and the files as they were hold everything."""
    data, values = killed_broker(tmp_path / "source")
    position = (data / "wal").read_bytes().find(values["a"][2])
    size = (data / "wal").stat().st_size
    cases = [
        Case("flipped", data, tmp_path, lambda data: flip(data / "wal", position)),
        Case("cut", data, tmp_path, lambda data: os.truncate(data / "wal", size // 2)),
        Case(
            "headless", data, tmp_path, lambda data: [flip(data / "wal", 20), flip(data / "wal", 4096 + 20)]
        ),
    ]
    cases[0].check_refused("the WAL", "damaged at position")
    cases[1].check_refused("the WAL", f"{size // 2} bytes")
    cases[2].check_refused("the WAL")
    flip(data / "wal", 20)
    check_whole(tmp_path / "source", values)


def test_a_damaged_wal_is_salvaged_as_the_setting_says(tmp_path: Path) -> None:
    """`millrace wal verify` names what is lost. Stepping over the damage would leave a hole in a partition:
    refused. The log cut off before it, everything older is there, in every partition, and the broker takes
    records and starts again without the setting."""
    data, values = killed_broker(tmp_path / "source")
    flip(data / "wal", (data / "wal").read_bytes().find(values["a"][5]))
    command = [sys.executable, "-m", "millrace.broker", "wal", "verify", str(data / "wal"), "--json"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert told.returncode == 1, told.stderr
    found = json.loads(told.stdout)
    assert len(found["damages"]) == 1
    assert [part["gaps"] for part in found["streams"] if part["gaps"]] == [[[5, 6]]]
    case = Case("skip", data, tmp_path, lambda data: None, wal_corruption="skip")
    said = case.process.communicate(timeout=PATIENCE_S)[1].decode().splitlines()[-1]
    assert "cannot be recovered" in said
    assert "=truncate, which gives up all from the damage on" in said
    shutil.copytree(data, tmp_path / "cut" / "data")
    with broker_on(tmp_path / "cut", wal_corruption="truncate") as broker, Client(broker.address) as client:
        assert client.read("a") == values["a"][:5]
        assert client.read("b") == values["b"][:5]
        assert client.produce("a", [b"new"]) == 5
    check_whole(tmp_path / "cut", {"a": [*values["a"][:5], b"new"], "b": values["b"][:5]})


def test_a_damaged_metadata_log_refuses_the_start(tmp_path: Path) -> None:
    """A byte in its midst, a quorum state that is none or that is gone, no word of the cluster: refused by
    file and place. A torn tail is what a power cut leaves: it starts, and holds everything."""
    data, values = killed_broker(tmp_path / "source")
    segment = "00000000000000000000.log"
    size = (data / METADATA / segment).stat().st_size
    cases = [
        Case("flipped", data, tmp_path, lambda data: flip(data / METADATA / segment, size // 2)),
        Case(
            "state",
            data,
            tmp_path,
            lambda data: (data / METADATA / "quorum-state").write_text('{"leaderEpoch":'),
        ),
        Case("stateless", data, tmp_path, lambda data: (data / METADATA / "quorum-state").unlink()),
        Case("bound", data, tmp_path, lambda data: (data / METADATA.parent / "meta.properties").unlink()),
    ]
    cases[0].check_refused("metadata log", segment, "at byte")
    cases[1].check_refused("metadata log", "quorum-state")
    cases[2].check_refused("metadata log", "quorum-state")
    cases[3].check_refused("metadata log directory is empty")
    with (data / METADATA / segment).open("ab") as file:
        file.write(os.urandom(50))
    check_whole(tmp_path / "source", values)


def test_a_damaged_snapshot_is_made_up_for(tmp_path: Path) -> None:
    """The newest snapshot is damaged, be it the first or a later one: the one before it and the log hold all.
    Nothing of what a later one stands on is left: refused by name."""
    first, _ = killed_broker(tmp_path / "first", metadata_log_max_record_bytes_between_snapshots=1000)
    later, values = killed_broker(tmp_path / "later", metadata_log_max_record_bytes_between_snapshots=200)
    (only,) = (first / METADATA).glob("*.checkpoint")
    flip(only, 100)
    one = Case("one", first, tmp_path, lambda data: None)
    before, newest = sorted((later / METADATA).glob("*.checkpoint"))
    lost = Case(
        "lost",
        later,
        tmp_path,
        lambda data: [(data / METADATA / name.name).unlink() for name in (before, newest)],
    )
    lost.check_refused("metadata log")
    one.check_ready()
    flip(newest, 100)
    check_whole(tmp_path / "later", values)
