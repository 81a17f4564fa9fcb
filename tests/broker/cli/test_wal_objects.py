"""`millrace wal` on a log of objects: what it says of one that is sound, damaged, another's, or none; and
that it changes nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from millrace.broker.__main__ import run_loop
from millrace.broker.cli import wal as command
from millrace.runtime.objectstore.local import LocalObjectStore
from millrace.runtime.rand import Rand
from millrace.s3stream.objects.format import encode_entry_header
from millrace.wal.errors import WalCorrupt
from millrace.wal.object.layout import HEADER_BYTES
from millrace.wal.object.log import ObjectWal
from tests.wal.build import Journal, owner
from tests.wal.object.build import small_settings


def ask(*words: str) -> int:
    return command.run(words, {}, run_loop)


async def write(folder: Path, node_id: int = 1) -> list[tuple[int, int]]:
    """Ten entries of stream 3 and ten of stream 5, an object each, then one record of something else;
    (position, end) of each."""
    who = owner(4, node_id=node_id)
    wal = await ObjectWal.open(await LocalObjectStore.open(str(folder)), small_settings(), who, Rand(b"cli"))
    assert [record async for record in wal.recover()] == []
    journal = Journal()
    wal.start(journal.on_confirmed, journal.on_failed)
    places = []
    for number in range(20):
        parts = [bytes([number]) * 300]
        record = wal.append(encode_entry_header(3 + number % 2 * 2, 1, 10 * (number // 2), 10, parts), *parts)
        await journal.reach(record.end)
        places.append((record.position, record.end))
    await journal.reach(wal.append(b"something else").end)
    await wal.close()
    return places


@pytest.fixture
def log(tmp_path: Path) -> tuple[Path, str, list[tuple[int, int]]]:
    folder = tmp_path / "objects"
    return folder, f"0@file://{folder}/?capacity=64MiB", asyncio.run(write(folder))


def held(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def flip(folder: Path, slot: int, at: int) -> Path:
    path = folder / "cluster" / "wal" / "1" / f"{4:020}" / f"{slot:020}"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    return path


def test_list_says_what_is_there(
    log: tuple[Path, str, list[tuple[int, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Who owns it, objects by kind, each stream with its offsets; the store is as it was."""
    folder, address, _ = log
    before = held(folder)
    assert ask("list", address) == 0
    said = capsys.readouterr().out
    assert "cluster cluster, node 1, epoch 4; closed in order" in said
    assert "stream 3: [0, 100), 10 records" in said
    assert "stream 5: [0, 100), 10 records" in said
    assert "1 records are of no stream" in said
    assert ask("list", address, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["records"], found["is_sound"], found["epoch"], found["is_closed"]) == (21, True, 4, True)
    assert {kind: told["count"] for kind, told in found["objects"].items()} == {
        "root": 1,
        "records": 21,
        "mark": 2,
    }
    assert held(folder) == before


def test_show_gives_every_record(
    log: tuple[Path, str, list[tuple[int, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """One a line, with its place and what it holds; without the bucket's id too."""
    _, address, places = log
    assert ask("show", address.removeprefix("0@"), "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["position"], row["end"]) for row in rows[:20]] == places
    assert (rows[2]["stream"], rows[2]["start"], rows[2]["count"], rows[20]["stream"]) == (3, 10, 10, None)
    assert ask("show", address) == 0
    assert "stream 5 epoch 1 [0, 10)" in capsys.readouterr().out.splitlines()[1]


def test_verify_names_the_place_and_what_is_lost(
    log: tuple[Path, str, list[tuple[int, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A sound log is called so; a flipped byte gives the position and the object, the stream's missing
    offsets and exit code 1; recovery agrees."""
    folder, address, places = log
    assert ask("verify", address) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "sound"
    flip(folder, 5, HEADER_BYTES + 100)
    before = held(folder)
    assert ask("verify", address) == 1
    said = capsys.readouterr().out
    assert f"damaged from position {places[4][0]} to {places[4][1]}, from epoch 4, slot 5 on" in said
    assert "stream 3 lacks [20, 30)" in said
    assert "wal.corruption=truncate" in said
    assert ask("verify", address, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["start"] for one in found["damages"]] == [places[4][0]]
    assert held(folder) == before

    async def open_it(policy: str) -> int:
        store = await LocalObjectStore.open(str(folder))
        wal = await ObjectWal.open(store, small_settings(corruption=policy), owner(9), Rand(b"again"))
        try:
            return len([record async for record in wal.recover()])
        finally:
            await store.close()

    assert asyncio.run(open_it("skip")) == found["records"] == 20
    with pytest.raises(WalCorrupt):
        asyncio.run(open_it_again(folder))


async def open_it_again(folder: Path) -> None:
    store = await LocalObjectStore.open(str(folder))
    try:
        wal = await ObjectWal.open(store, small_settings(), owner(10), Rand(b"once more"))
        async for _ in wal.recover():
            pass
    finally:
        await store.close()


def test_one_of_several_is_chosen_by_its_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two nodes have their logs in one store: asked which, and then shown that one."""
    for node_id in (1, 7):
        asyncio.run(write(tmp_path, node_id))
    assert ask("list", f"0@file://{tmp_path}/") == 2
    assert "nodes 1, 7 have a log there: say --node" in capsys.readouterr().err
    assert ask("list", f"0@file://{tmp_path}/", "--node", "7") == 0
    assert "node 7, epoch 4" in capsys.readouterr().out
    assert ask("list", f"0@file://{tmp_path}/", "--node", "3") == 2
    assert "there is no log of node 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0@file://{}/at/all/?capacity=zz", "has capacity=***, which is not a number"),
        ("0@file://{}/at/all/?fence=paper", "it must be conditional or reservation"),
        ("0@file://{}/at/all/", "no node has a log of objects there"),
        ("0@gopher://hole", "the scheme is none of"),
        ("0@s3://", "names no bucket"),
    ],
)
def test_what_cannot_be_looked_at(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence and exit code 2; nothing is made where nothing was."""
    assert ask("list", text.format(tmp_path)) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [[], ["--node", "1"]], ids=["the only one", "by its node"])
@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "damaged"])
def test_a_log_that_lost_its_root_is_shown(
    is_gone: bool,
    words: list[str],
    log: tuple[Path, str, list[tuple[int, int]]],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is found by its other objects, and every record is there; that it is not sound is said, and what a
    start makes of it, which says so too."""
    folder, address, places = log
    root = folder / "millrace-wal-1"
    whole = root.read_bytes()
    root.unlink()
    if not is_gone:
        root.write_bytes(whole[:100])
    before = held(folder)
    assert ask("list", address, *words) == 0
    said = capsys.readouterr().out
    assert "stream 3: [0, 100), 10 records" in said
    assert "millrace-wal-1" in said
    assert "the log was found by its other objects" in said
    assert ask("show", address, *words, "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["position"], row["end"]) for row in rows[:20]] == places
    assert ask("verify", address, *words) == 1
    said = capsys.readouterr().out
    assert "21 records" in said
    assert said.splitlines()[-1].startswith("NOT sound: wal.corruption=refuse refuses a start; with skip")
    assert held(folder) == before

    async def skip() -> int:
        store = await LocalObjectStore.open(str(folder))
        wal = await ObjectWal.open(store, small_settings(corruption="skip"), owner(9), Rand(b"again"))
        try:
            return len([record async for record in wal.recover()])
        finally:
            await store.close()

    assert asyncio.run(skip()) == 21
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert (
        "the WAL's object millrace-wal-1, where the log begins, is gone or cannot be read"
        in warning.getMessage()
    )


def test_a_damaged_root_alone_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else names the log's cluster."""
    (tmp_path / "millrace-wal-1").write_bytes(b"short")
    assert ask("list", f"0@file://{tmp_path}/") == 2
    assert (
        "millrace-wal-1 cannot be read, which names the log's cluster, and no other object of the log is "
        "there"
    ) in capsys.readouterr().err


def test_logs_without_roots_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Among other things in a bucket, other clusters' too: a log is found by its keys, and where two may be
    meant, both are named."""
    for node_id in (1, 7, 30):
        asyncio.run(write(tmp_path, node_id))
    (tmp_path / "millrace-wal-7").unlink()
    (tmp_path / "millrace-wal-30").unlink()
    for name in ("aaa/objects/1", "cluster/objects/5", "cluster/zoo", "other/wal/x/1", "zzz/wal", "readme"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    assert ask("list", f"0@file://{tmp_path}/") == 2
    assert "nodes 1, 7, 30 have a log there: say --node" in capsys.readouterr().err
    assert ask("list", f"0@file://{tmp_path}/", "--node", "7") == 0
    assert "cluster cluster, node 7, epoch 4" in capsys.readouterr().out
    path = tmp_path / "another" / "wal" / "7" / f"{4:020}" / f"{0:020}"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    assert ask("list", f"0@file://{tmp_path}/", "--node", "7") == 2
    assert "clusters another, cluster have objects of a log of node 7 there" in capsys.readouterr().err
    assert ask("list", f"0@file://{tmp_path}/", "--node", "1") == 0
