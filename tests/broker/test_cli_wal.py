"""`millrace wal`: what it says of a log that is sound, damaged, in use, or none; and that it changes nothing."""

from __future__ import annotations

import asyncio
import fcntl
import json
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.cli import wal as command
from millrace.runtime.disk_posix import PosixDisk
from millrace.s3stream.objects.format import encode_entry_header
from millrace.wal.block.layout import BLOCK_BYTES, RING_START
from millrace.wal.block.log import BlockWal
from millrace.wal.errors import WalCorrupt
from tests.wal.build import Journal, owner, small_settings


def no_loop(main: Any) -> int:
    raise AssertionError("it needs no loop")


def ask(*words: str) -> int:
    return command.run(words, {}, no_loop)


async def write(path: Path) -> list[tuple[int, int]]:
    """Ten entries of stream 3 and ten of stream 5, a block each, then one record of something else; (position, end) of each."""
    wal = await BlockWal.open(PosixDisk(), str(path), small_settings(), owner(4))
    assert [record async for record in wal.recover()] == []
    journal = Journal()
    wal.start(journal.on_confirmed, journal.on_failed)
    places = []
    for number in range(20):
        parts = [bytes([number]) * 300]
        head = encode_entry_header(3 + number % 2 * 2, 1, 10 * (number // 2), 10, parts)
        record = wal.append(head, *parts)
        await journal.reach(record.end)
        places.append((record.position, record.end))
    await journal.reach(wal.append(b"something else").end)
    await wal.close()
    return places


@pytest.fixture
def log(tmp_path: Path) -> tuple[Path, list[tuple[int, int]]]:
    path = tmp_path / "wal"
    return path, asyncio.run(write(path))


def damage(path: Path, position: int) -> int:
    """Flips a byte of a record; where its block begins."""
    data = bytearray(path.read_bytes())
    data[RING_START + position + 200] ^= 1
    path.write_bytes(data)
    return position - position % BLOCK_BYTES


def test_list_says_what_is_there(log: tuple[Path, list[tuple[int, int]]], capsys: pytest.CaptureFixture[str]) -> None:
    """The header, each stream with its offsets, and what is of no stream; the file is as it was."""
    path, _ = log
    before = path.read_bytes()
    assert ask("list", str(path)) == 0
    said = capsys.readouterr().out
    assert "cluster cluster, node 1, epoch 4 from position 0; closed in order" in said
    assert "stream 3: [0, 100), 10 records" in said
    assert "stream 5: [0, 100), 10 records" in said
    assert "1 records are of no stream" in said
    assert ask("list", str(path), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["records"], found["is_sound"], found["header"]["epoch"]) == (21, True, 4)
    assert path.read_bytes() == before


def test_show_gives_every_record(log: tuple[Path, list[tuple[int, int]]], capsys: pytest.CaptureFixture[str]) -> None:
    """One a line, with its place and what it holds."""
    path, places = log
    assert ask("show", str(path)) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 21
    assert said[1].split()[0] == str(places[1][0])
    assert "stream 5 epoch 1 [0, 10)" in said[1]
    assert ask("show", str(path), "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["position"], row["end"]) for row in rows[:20]] == places
    assert (rows[2]["stream"], rows[2]["start"], rows[2]["count"], rows[20]["stream"]) == (3, 10, 10, None)


def test_verify_names_the_place_and_what_is_lost(
    log: tuple[Path, list[tuple[int, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A sound log is called so; a flipped byte gives the block's position, the stream's missing offsets and exit code 1; recovery agrees."""
    path, places = log
    assert ask("verify", str(path)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "sound"
    start = damage(path, places[4][0])
    assert ask("verify", str(path)) == 1
    said = capsys.readouterr().out
    assert f"damaged from position {start} (byte {RING_START + start}) to {start + BLOCK_BYTES}" in said
    assert "stream 3 lacks [20, 30)" in said
    assert "truncate" in said
    assert ask("verify", str(path), "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["start"] for one in found["damages"]] == [start]

    async def open_it(policy: str) -> int:
        wal = await BlockWal.open(PosixDisk(), str(path), small_settings(corruption=policy), owner(9))
        try:
            return len([record async for record in wal.recover()])
        finally:
            await wal.close()

    with pytest.raises(WalCorrupt):
        asyncio.run(open_it("refuse"))
    assert asyncio.run(open_it("skip")) == found["records"] == 20


def test_a_log_in_use_is_left_alone(
    log: tuple[Path, list[tuple[int, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """While a node has it open it changes under a reader: refused with the remedy."""
    path, _ = log
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert ask("list", str(path)) == 2
    assert "is in use by a running node: stop it, or look at a copy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"short"), "no WAL: 5 bytes"),
        (lambda path: path.write_bytes(bytes(65536)), "nobody has written a header"),
        (lambda path: path.write_bytes(b"x" * 65536), "neither copy of the device header"),
    ],
)
def test_what_is_no_log_gets_a_sentence(
    make: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing, a folder, something short, zeros, another program's file: exit code 2 and one sentence."""
    path = tmp_path / "other"
    make(path)
    assert ask("list", str(path)) == 2
    assert words in capsys.readouterr().err


def test_a_log_cut_short_gets_a_sentence(
    log: tuple[Path, list[tuple[int, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy that is shorter than its header says is refused before anything is read."""
    path, _ = log
    path.write_bytes(path.read_bytes()[:65536])
    assert ask("verify", str(path)) == 2
    assert "its header says 262144" in capsys.readouterr().err
