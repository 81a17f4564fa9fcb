"""fsck, objects and streams on what a live broker left behind: a sound bucket, a damaged one, orphans, a
broker that runs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.__main__ import run_loop
from millrace.broker.cli import fsck, objects, streams
from millrace.broker.identity.claim_format import NOBODY, ClaimKind, OwnerClaim, encode_claim
from millrace.broker.inspection.opening import ReadOnlyDisk
from millrace.kraft.errors import LogCorrupt
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.runtime.disk.posix import PosixDisk
from millrace.runtime.objectstore import StoreUnavailable
from millrace.runtime.objectstore.local import LocalObjectStore
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects.composite import LinkedRows, encode_composite
from millrace.s3stream.objects.format import ROW
from millrace.wal.block.layout import RING_START
from millrace.wal.object.layout import root_key
from tests.live import LiveBroker
from tests.live.client import Client
from tests.patience import PATIENCE_S, until

DAY_S = 86_400


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """Two topics with records in objects, a third that was deleted with its objects, and a broker that was
    stopped in order."""
    overrides = {"s3.wal.upload.interval.ms": "200", "s3.object.delete.retention.minutes": "0"}
    with LiveBroker(tmp_path_factory.mktemp("fsck"), overrides, wal="64MiB") as made:
        with Client(made.address) as client:
            client.create("gone")
            client.produce("gone", [b"x"])
            until(lambda: stored(made.folder / "data"))
            client.delete("gone")
            until(lambda: not stored(made.folder / "data"))
            client.create("orders", 2)
            client.create("notes")
            for number in range(20):
                if number == 10:
                    until(lambda: stored(made.folder / "data"))  # so that there are two objects at least
                client.produce("orders", [b"order %d" % number * 40], number % 2)
                client.produce("notes", [os.urandom(50_000)])
        made.stop()
        yield made


@pytest.fixture
def folder(broker: LiveBroker, tmp_path: Path) -> Path:
    """A copy of the node's directory, without its WAL, to be damaged."""
    copied = tmp_path / "data"
    shutil.copytree(broker.folder / "data", copied, ignore=shutil.ignore_patterns("wal"))
    return copied


def stored(folder: Path) -> list[Path]:
    """Files of objects, also while some of them go."""
    found = [Path(at) / name for at, _, names in os.walk(folder / "objects") for name in names]
    return sorted(path for path in found if path.parts[-3] == "objects")


def checked(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = fsck.run(["--data-dir", str(folder), "--json", *words], {}, run_loop)
    return code, json.loads(capsys.readouterr().out)


def test_a_node_that_was_stopped_is_sound(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every object and block is read, and nothing in the directory changes; the table says so in a word."""
    before = {
        path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*") if path.is_file()
    }
    code, found = checked(folder, capsys)
    assert (code, found["sound"], found["list"], found["running"]) == (0, True, [], "")
    assert found["objects"] == len(stored(folder)) - found["pending_deletion"] > 0
    assert found["blocks"] > 0
    after = {
        path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*") if path.is_file()
    }
    assert {path.name for path in before if before[path] != after[path]} <= {".lock"}
    assert fsck.run(["--data-dir", str(folder)], {}, run_loop) == 0
    assert "\nsound\n" in capsys.readouterr().out


def test_damage_ends_with_code_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A flipped byte and a file that is gone: both named, with the topic whose offsets are affected."""
    one, other, *_ = stored(folder)
    data = bytearray(one.read_bytes())
    data[len(data) // 2] ^= 4
    one.write_bytes(data)
    other.unlink()
    code, found = checked(folder, capsys)
    assert (code, found["sound"]) == (1, False)
    assert {(finding["kind"], finding["object_id"]) for finding in found["list"]} >= {
        ("damaged", int(one.name)),
        ("missing", int(other.name)),
    }
    assert fsck.run(["--data-dir", str(folder)], {}, run_loop) == 1
    assert "NOT sound" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["-1", "nan", "inf", "soon", "1h"])
def test_a_grace_that_is_no_number_of_minutes_is_refused(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a sentence and code 2, before anything is looked at."""
    with pytest.raises(SystemExit) as ended:
        fsck.run(["--grace-minutes", word], {}, run_loop)
    assert ended.value.code == 2
    assert f"--grace-minutes: {word!r} is not a number of minutes: give 0 or more" in capsys.readouterr().err


def test_what_takes_long_says_how_far_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stderr, also while the store does not answer; a check that is quickly done says nothing but its
    verdict."""
    assert checked(folder, capsys)[0] == 0
    fsck.run(["--data-dir", str(folder)], {}, run_loop)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(fsck, "SAY_FIRST_S", 0.01)
    monkeypatch.setattr(fsck, "SAY_EVERY_S", 0.05)
    get_range = LocalObjectStore.get_range

    async def slow(self: LocalObjectStore, key: str, start: int, end: int) -> bytes:
        await asyncio.sleep(0.1)
        return await get_range(self, key, start, end)

    monkeypatch.setattr(LocalObjectStore, "get_range", slow)
    assert fsck.run(["--data-dir", str(folder)], {}, run_loop) == 0
    told = capsys.readouterr().err.splitlines()
    assert len(told) > 2
    assert any(line.startswith("  checked 0 of ") and " blocks, " in line for line in told), told


def test_a_log_that_cannot_be_reached_does_not_hide_what_was_found(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket's findings are told, and that the log was not checked, with the log's own address: code 2,
    or 1 with damage."""

    async def unreachable(*_: object, **__: object) -> None:
        raise StoreUnavailable("millrace-wal-1", "no route")

    monkeypatch.setattr(fsck, "check_log", unreachable)
    assert fsck.run(["--data-dir", str(folder)], {}, run_loop) == 2
    told = capsys.readouterr().out
    address = rf"0@file://{folder}/wal\S*"
    assert re.search(
        rf"the write-ahead log could not be checked: {address}: millrace-wal-1: no route", told
    ), told
    assert told.endswith("sound, but for what could not be checked\n")
    stored(folder)[0].unlink()
    code, found = checked(folder, capsys)
    assert (code, found["sound"]) == (1, False)
    assert found["list"]
    assert "no route" in found["wal"]["fault"]


def test_orphans_go_when_asked_and_old(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An old orphan and a young one: neither goes unasked; asked, the old one goes, and nothing else."""
    live = stored(folder)
    orphan = old_orphan(folder, capsys)
    os.utime(orphan)
    code, found = checked(folder, capsys, "--delete-orphans")
    assert (code, found["findings"]) == (0, {"orphan": 1})
    assert "0 were deleted" in found["orphans"]
    assert orphan.exists()
    os.utime(orphan, (time.time() - 2 * DAY_S,) * 2)
    code, found = checked(folder, capsys)
    assert "go with --delete-orphans" in found["orphans"]
    assert orphan.exists()
    code, found = checked(folder, capsys, "--delete-orphans")
    assert (code, "1 were deleted" in found["orphans"]) == (0, True)
    assert stored(folder) == live


def test_a_directory_that_was_taken_over_deletes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another copy of this log directory has claimed the node since: what this one does not know may be that
    one's."""
    orphan = old_orphan(folder, capsys)
    claims = sorted((folder / "objects").glob("*/owners/*/*"))
    newest = {path.parent.name: path for path in claims}
    assert set(newest) == {"metadata", "1"}
    cluster = orphan.parents[2].name
    for series, path in newest.items():
        number = int(path.name) + 1
        claim = OwnerClaim(
            ClaimKind.CLAIMED,
            cluster,
            METADATA_SERIES if series == "metadata" else 1,
            number,
            b"x" * 16,
            NOBODY,
            0,
            0,
            0,
        )
        made = path.with_name(f"{number:020}")
        made.write_bytes(encode_claim(claim))
        code, found = checked(folder, capsys, "--delete-orphans")
        assert (code, orphan.exists()) == (0, True)
        assert "none was deleted" in found["orphans"]
        assert "knows nothing" in found["orphans"]
        made.unlink()
    checked(folder, capsys, "--delete-orphans")
    assert not orphan.exists()


def test_a_directory_older_than_its_log_deletes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Log directory and bucket were put back from copies of before the last start, the write-ahead log was
    not: it alone knows that there was more."""
    orphan = old_orphan(folder, capsys)
    copies = folder.parent / "copies"
    for name in ("metadata", "objects"):
        shutil.copytree(folder / name, copies / name)
    with LiveBroker(folder.parent, wal="64MiB") as broker:
        broker.stop()
    for name in ("metadata", "objects"):
        shutil.rmtree(folder / name)
        shutil.copytree(copies / name, folder / name)
    _, found = checked(folder, capsys, "--delete-orphans")
    assert "none was deleted" in found["orphans"]
    assert "the write-ahead log" in found["orphans"]
    assert "it is an older copy" in found["orphans"]
    assert orphan.exists()


@pytest.mark.parametrize(
    ("wal", "damaged", "said"),
    [("wal?capacity=64MiB", "wal", "does not say"), ("wal/", f"wal/{root_key(1)}", "cannot be read")],
    ids=["block", "object"],
)
def test_a_log_that_cannot_be_read_has_nothing_deleted(
    folder: Path, capsys: pytest.CaptureFixture[str], wal: str, damaged: str, said: str
) -> None:
    """There is a write-ahead log, and its header is damaged: what it knows of metadata nobody can tell."""
    orphan = old_orphan(folder, capsys)
    address = f"s3.wal.path=0@file://{folder}/{wal}"
    with LiveBroker(folder.parent, dict([address.split("=", 1)])) as broker:
        broker.stop()
    os.utime(orphan, (time.time() - 2 * DAY_S,) * 2)
    with (folder / damaged).open("r+b") as log:
        log.write(b"\xff" * RING_START)
    _, found = checked(folder, capsys, "--override", address, "--delete-orphans")
    assert "none was deleted" in found["orphans"]
    assert f"the write-ahead log {address.partition('=')[2]} {said}" in found["orphans"]
    assert orphan.exists()


def old_orphan(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A file under the key of an object that was deleted, two days old."""
    known = {one["object_id"] for one in listed_objects(folder, capsys)}
    free = next(number for number in range(max(known)) if number not in known)
    cluster = stored(folder)[0].parents[2].name
    orphan = folder / "objects" / cluster / "objects" / f"{free:08x}"[::-1] / str(free)
    orphan.parent.mkdir(parents=True, exist_ok=True)
    orphan.write_bytes(b"nobody's")
    os.utime(orphan, (time.time() - 2 * DAY_S,) * 2)
    return orphan


def listed_objects(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert objects.run(["list", "--data-dir", str(folder), "--json"], {}, run_loop) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_objects_and_streams_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is listed is what is stored; a stream's ranges lead to objects whose blocks have them; each in a
    table too."""
    committed = [one for one in listed_objects(folder, capsys) if one["state"] == "committed"]
    assert {folder / "objects" / one["key"] for one in committed} <= set(stored(folder))
    assert streams.run(["list", "--topic", "notes", "--data-dir", str(folder), "--json"], {}, run_loop) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["role"] for one in found} == {"data", "meta", "time"}
    [data] = [one for one in found if one["role"] == "data"]
    assert (data["start"], data["end"]) == (0, 20)
    assert (
        streams.run(["show", str(data["stream_id"]), "--data-dir", str(folder), "--json"], {}, run_loop) == 0
    )
    held = json.loads(capsys.readouterr().out)["held"]
    assert (held[0]["start"], held[-1]["end"]) == (0, 20)
    offsets: set[int] = set()
    for object_id in {object_id for one in held for object_id in one["objects"]}:
        assert objects.run(["show", str(object_id), "--data-dir", str(folder), "--json"], {}, run_loop) == 0
        shown = json.loads(capsys.readouterr().out)
        mine = [block for block in shown["blocks"] if block["stream_id"] == data["stream_id"]]
        offsets |= {offset for block in mine for offset in range(block["start"], block["end"])}
    assert offsets == set(range(20))
    for command, words in ((objects, ["list"]), (objects, ["show", str(object_id)]), (streams, ["list"])):
        assert command.run([*words, "--data-dir", str(folder)], {}, run_loop) == 0
        assert len(capsys.readouterr().out.splitlines()) > 3
    assert objects.run(["show", str(object_id), "--data-dir", str(folder)], {}, run_loop) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("notes-0 data", " bytes)", "time (UTC)"))
    assert not re.search(r" -1$", text, re.MULTILINE), "what is not there is not shown"


def test_what_is_not_there_is_said_on_stderr(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Code 1 and a sentence, and nothing where a program reads its JSON: an object, a stream, a topic; a
    number below zero is none either."""
    for command, words, sentence in (
        (objects, ["show", "999999"], "no object 999999, neither in the metadata nor in the bucket"),
        (objects, ["show", "-1"], "no object -1, neither in the metadata nor in the bucket"),
        (streams, ["show", "999999", "--json"], "no stream 999999 in the metadata"),
        (streams, ["list", "--topic", "nosuch"], "no stream of a topic 'nosuch' in the metadata"),
    ):
        assert command.run([*words, "--data-dir", str(folder)], {}, run_loop) == 1
        assert capsys.readouterr() == ("", f"millrace: {sentence}\n")


def test_an_object_that_cannot_be_read_is_shown_as_metadata_has_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damaged or gone: its key and state all the same, then what is wrong, code 2."""
    one, other, *_ = stored(folder)
    one.write_bytes(one.read_bytes()[:-1] + b"x")
    other.unlink()
    for path, why in ((one, "footer magic"), (other, "no such object")):
        assert objects.run(["show", path.name, "--data-dir", str(folder)], {}, run_loop) == 2
        out, err = capsys.readouterr()
        assert f"/{path.name}\n" in out
        assert "committed" in out
        assert why in err
        assert objects.run(["show", path.name, "--data-dir", str(folder), "--json"], {}, run_loop) == 2
        assert why in json.loads(capsys.readouterr().out)["fault"]


@pytest.mark.parametrize("words", ["fsck", "objects list", "streams list --json"])
def test_a_reader_that_went_away_is_no_fault_of_the_store(folder: Path, words: str) -> None:
    """Commands that tell of failed disks and stores in a sentence say nothing of a closed pipe; the
    metadata's lock is free again."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "millrace.broker", *words.split(), "--data-dir", str(folder)]
    found = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    os.close(writer)
    assert (found.returncode, found.stderr) == (141, b"")
    assert fsck.run(["--data-dir", str(folder)], {}, run_loop) == 0


def test_an_object_that_metadata_does_not_know_is_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its key, with what its own index says: so an orphan can be looked at before it goes."""
    orphan = old_orphan(folder, capsys)
    shutil.copyfile(max(stored(folder), key=lambda path: path.stat().st_size), orphan)
    assert objects.run(["show", orphan.name, "--data-dir", str(folder), "--json"], {}, run_loop) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["state"].startswith("not in metadata")
    assert shown["blocks"]


def test_a_composite_that_metadata_does_not_know_is_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its links, though nothing but its own footer says what it is."""
    orphan = old_orphan(folder, capsys)
    orphan.write_bytes(
        encode_composite([LinkedRows(ObjectId(77), 500, memoryview(ROW.pack(3, 10, 5, 5, 0, 400)))])
    )
    assert objects.run(["show", orphan.name, "--data-dir", str(folder), "--json"], {}, run_loop) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["links"] == [{"object_id": 77, "size_bytes": 500, "start": 10, "end": 15, "writer": ""}]


def test_a_torn_tail_of_the_metadata_log_is_left_as_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a power cut left behind the last whole batch is the next start's to cut: fsck reads up to it and
    changes nothing."""
    [*_, segment] = sorted(folder.glob("**/__cluster_metadata-0/*.log"))
    content = segment.read_bytes() + bytes(30)
    segment.write_bytes(content)
    assert checked(folder, capsys)[0] == 0
    assert segment.read_bytes() == content


def test_a_running_broker_is_told_of_and_kept_out(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """While a broker runs the commands say so, and nothing is deleted; while fsck looks, no broker starts
    (the lock is held)."""
    data = broker.folder / "data"
    orphan = old_orphan(data, capsys)
    broker.start()
    try:
        code = fsck.run(["--data-dir", str(data), "--json", "--delete-orphans", "--quick"], {}, run_loop)
        told = capsys.readouterr()
        assert code == 0
        assert f"process {broker.pid}" in told.err
        found = json.loads(told.out)
        assert found["running"] == str(broker.pid)
        assert "none was deleted, for a broker is running" in found["orphans"]
        assert orphan.exists()
        assert objects.run(["list", "--data-dir", str(data)], {}, run_loop) == 0
        assert f"process {broker.pid}" in capsys.readouterr().err
    finally:
        broker.stop()
        orphan.unlink()


def test_who_only_looks_takes_no_lock(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """objects and streams leave the lock's file as the last owner left it, so that a start in that instant is
    not refused; and they look where that owner's file cannot be written."""
    lock = folder / "metadata" / ".lock"
    before = lock.read_text()
    lock.chmod(0o400)
    for command in (objects, streams):
        assert command.run(["list", "--data-dir", str(folder)], {}, run_loop) == 0
    assert "is running" not in capsys.readouterr().err
    assert lock.read_text() == before


def test_a_segment_that_went_away_is_not_made_again(tmp_path: Path) -> None:
    """A running broker removes old segments: one that was listed a moment ago is no longer there, and looking
    does not make it."""
    disk = ReadOnlyDisk(PosixDisk())
    path = tmp_path / "00000000000000000000.log"
    with pytest.raises(LogCorrupt, match="went away"):
        asyncio.run(disk.open_log(str(path)))
    assert not path.exists()


def test_what_cannot_be_checked_is_a_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No directory, another cluster's bucket, a metadata log that is damaged: code 2 and why."""
    assert fsck.run(["--data-dir", str(tmp_path / "nothing")], {}, run_loop) == 2
    assert "holds no metadata log" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()
    empty = f"s3.data.buckets=0@file://{tmp_path}/empty"
    assert fsck.run(["--data-dir", str(folder), "--override", empty], {}, run_loop) == 2
    assert "was never used" in capsys.readouterr().err
    [segment, *_] = sorted(folder.glob("**/__cluster_metadata-0/*.log"))
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)
    assert fsck.run(["--data-dir", str(folder)], {}, run_loop) == 2
    assert "metadata log cannot be used" in capsys.readouterr().err
