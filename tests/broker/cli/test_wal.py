"""`millrace wal`: what it says of a log that is sound, damaged, in use, or none; and that it changes
nothing."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.cli import wal as command
from millrace.runtime.disk import peek as disk_peek
from millrace.runtime.disk.posix import PosixDisk
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
    """Ten entries of stream 3 and ten of stream 5, a block each, then one record of something else;
    (position, end) of each."""
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


def test_list_says_what_is_there(
    log: tuple[Path, list[tuple[int, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_show_gives_every_record(
    log: tuple[Path, list[tuple[int, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
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
    """A sound log is called so; a flipped byte gives the block's position, the stream's missing offsets and
    exit code 1; recovery agrees."""
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
        (
            lambda path: path.write_bytes(b"x" * 65536),
            "holds no WAL: neither copy of a header can be read, and no block of a log is there",
        ),
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


@pytest.mark.parametrize("copy", [0, 1])
def test_one_copy_of_the_header_that_rots_is_told(
    copy: int, log: tuple[Path, list[tuple[int, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost by it, so the exit code is 0; but the next copy to rot would take the log with it."""
    path, _ = log
    data = bytearray(path.read_bytes())
    data[copy * BLOCK_BYTES + 30] ^= 1
    path.write_bytes(data)
    assert ask("verify", str(path)) == 0
    said = capsys.readouterr().out.splitlines()
    assert f"warning: the copy of the header at byte {copy * BLOCK_BYTES} cannot be read" in said[2]
    assert said[-1] == "sound, but for one copy of the header"
    assert ask("list", str(path)) == 0
    assert "warning: the copy of the header" in capsys.readouterr().out
    assert ask("verify", str(path), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rotten_copies"], found["is_sound"], found["records"]) == ([copy * BLOCK_BYTES], True, 21)


@pytest.mark.parametrize("harm", [bytes(2 * BLOCK_BYTES), b"\xa5" * 2 * BLOCK_BYTES], ids=["zeros", "noise"])
def test_a_log_without_a_header_is_shown_by_its_blocks(
    harm: bytes, log: tuple[Path, list[tuple[int, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every record that is sound, marked as what it is: by the blocks' own word. Verify finds it not sound,
    and says what works."""
    path, places = log
    damage(path, places[4][0])
    path.write_bytes(harm + path.read_bytes()[2 * BLOCK_BYTES :])
    before = path.read_bytes()
    assert ask("list", str(path)) == 0
    said = capsys.readouterr().out
    assert "neither copy of the header can be read" in said
    assert f"a capacity of {len(before)} bytes is assumed, from the size of the file" in said
    assert "21 blocks, of epochs 4 to 4, the first at position 0" in said
    assert "20 records" in said
    assert "1 blocks are not whole, the first at byte" in said
    assert "stream 3: [0, 100), 9 records" in said
    assert "stream 3 lacks [20, 30)" in said
    assert ask("verify", str(path)) == 1
    said = capsys.readouterr().out
    assert "NOT sound" in said
    assert "wal.lost.accept=true" in said
    assert "skip" not in said
    assert ask("verify", str(path), "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["header"], found["assumed_capacity_bytes"]) == (None, len(before))
    assert (found["records"], found["stray_blocks"]) == (20, [])
    assert ask("show", str(path), "--json") == 0
    shown = capsys.readouterr()
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert [(row["position"], row["end"]) for row in rows[:19]] == [
        place for place in places if place != places[4]
    ]
    assert "by their own word" in shown.err
    assert path.read_bytes() == before


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Places of blocks that the device does not read; tests fill it."""
    places: list[int] = []
    pread = os.pread

    def failing(fd: int, length: int, position: int) -> bytes:
        if any(position - BLOCK_BYTES < at < position + length for at in places):
            raise OSError(errno.EIO, "Input/output error")
        return pread(fd, length, position)

    monkeypatch.setattr(os, "pread", failing)
    return places


def test_what_cannot_be_read_is_told_as_damage(
    log: tuple[Path, list[tuple[int, int]]], lost: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad sector in a copy of the header, in a block, and in both copies: as where they rotted. Too many of
    them are a device that fails."""
    path, places = log
    lost.append(BLOCK_BYTES)
    assert ask("verify", str(path)) == 0
    assert f"the copy of the header at byte {BLOCK_BYTES} cannot be read" in capsys.readouterr().out
    start = places[4][0] - places[4][0] % BLOCK_BYTES
    lost.append(RING_START + start)
    assert ask("verify", str(path)) == 1
    said = capsys.readouterr().out
    assert (
        f"damaged from position {start} (byte {RING_START + start}) to {start + BLOCK_BYTES}: the device "
        "cannot read it"
    ) in said
    assert "stream 3 lacks [20, 30)" in said
    lost.append(0)
    assert ask("verify", str(path)) == 1
    said = capsys.readouterr().out
    assert "neither copy of the header can be read" in said
    assert "20 records" in said
    lost += range(0, path.stat().st_size, BLOCK_BYTES)
    assert ask("verify", str(path)) == 2
    assert "neither copy of a header can be read, and no block of a log is there" in capsys.readouterr().err


def test_a_device_that_fails_is_said_to(
    log: tuple[Path, list[tuple[int, int]]],
    lost: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(disk_peek, "UNREADABLE_BYTES_MAX", 4 * BLOCK_BYTES)
    path, _ = log
    lost += range(RING_START, RING_START + 5 * BLOCK_BYTES, BLOCK_BYTES)
    assert ask("verify", str(path)) == 2
    assert "Input/output error" in capsys.readouterr().err


async def write_laps(path: Path) -> int:
    """A ring that was gone round more than twice; where it ends."""
    wal = await BlockWal.open(PosixDisk(), str(path), small_settings(), owner(4))
    async for _ in wal.recover():
        pass
    journal = Journal()
    wal.start(journal.on_confirmed, journal.on_failed)
    while wal.confirmed_end < 2.5 * wal.capacity_bytes:
        record = wal.append(b"x" * 9000)
        await journal.reach(record.end)
        await wal.trim(record.end)
    await wal.close()
    return record.end


@pytest.mark.parametrize("more_bytes", [0, BLOCK_BYTES])
def test_laps_without_a_header(more_bytes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks of two laps, in order; on a device that is larger than the capacity was, they are told all the
    same, and that they lie elsewhere."""
    path = tmp_path / "wal"
    end = asyncio.run(write_laps(path))
    path.write_bytes(bytes(2 * BLOCK_BYTES) + path.read_bytes()[2 * BLOCK_BYTES :] + bytes(more_bytes))
    assert ask("show", str(path), "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    positions = [row["position"] for row in rows]
    assert positions == sorted(positions)
    assert rows[-1]["end"] == end
    assert len(rows) > 15
    assert ask("list", str(path)) == 0
    assert ("blocks lie elsewhere than this capacity would have them" in capsys.readouterr().out) == bool(
        more_bytes
    )


def test_an_address_is_gone_by_as_a_start_goes_by_it(
    log: tuple[Path, list[tuple[int, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """What s3.wal.path says of a file is that file, with or without the number in front; what it could not
    say is refused as there."""
    path, _ = log
    for address in (f"0@file://{path}?capacity=256KiB", f"file://{path}", f"0@file://{path}?kind=block"):
        assert ask("verify", address) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "sound"
    for address, words in (
        (f"0@file://{path}?capacity=zz", "has capacity=***, which is not a number of bytes"),
        (f"0@file://{path}?capacity=1KiB", "it must be at least 256 KiB"),
        (f"0@file://{path}?kind=paper", "kind=paper is neither block nor object"),
        (f"0@file://{path.parent}", "is a directory: a log of objects in it has an address that ends with /"),
        (f"0@file://{path.parent}/none", "No such file"),
    ):
        assert ask("list", address) == 2, address
        assert words in capsys.readouterr().err
    assert ask("list", f"0@file://{path}?capasity=1GiB") == 0
    assert "nothing reads the option capasity" in capsys.readouterr().err
