"""Test mode: its settings, and that no other start has what it brings."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.broker.cli.serve import Options, parse_options, read_settings
from millrace.broker.test_mode import take_folder, without_fill
from millrace.kraft.log.meta_properties import MetaProperties, write_meta_properties
from millrace.runtime.disk import DiskFailed, DiskFull
from millrace.runtime.disk_unsynced import UnsyncedDisk
from millrace.runtime.errors import Closed
from millrace.wal.config import BlockWalSettings
from tests.patience import PATIENCE_S


def test_its_settings_stand_behind_those_given(tmp_path: Path) -> None:
    """Each is there where nothing else was said, and a given one wins, also one of the environment."""
    given = ("offsets.topic.num.partitions=5", "admin.listener=127.0.0.1:1")
    env = {"KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "7"}
    settings = read_settings(Options(None, given, str(tmp_path), is_test=True), env).settings
    assert settings.groups.offsets_partitions_count == 5
    assert settings.groups.initial_rebalance_delay_ms == 7
    assert settings.groups.session_timeout_min_ms == 100
    assert settings.topics.retention_check_interval_ms == 1_000
    assert settings.memory.total_bytes <= 256 << 20


def test_its_log_has_the_capacity_that_was_given(tmp_path: Path) -> None:
    """Under the key of its own, in the file's path or nowhere: never two that contradict each other."""
    path = f"0@file://{tmp_path}/log"
    for given, capacity_bytes in (
        ((), 64 << 20),
        (("s3.wal.capacity=33554432",), 32 << 20),
        ((f"s3.wal.path={path}?capacity=16MiB",), 16 << 20),
        ((f"s3.wal.path={path}", "s3.wal.capacity=33554432"), 32 << 20),
    ):
        settings = read_settings(Options(None, given, str(tmp_path), is_test=True), {}).settings
        assert isinstance(settings.wal_settings, BlockWalSettings)
        assert settings.wal_settings.capacity_bytes == capacity_bytes, given


def test_a_start_without_it_has_none_of_them(tmp_path: Path) -> None:
    """It is a word of the command line alone."""
    options = parse_options(["--data-dir", str(tmp_path)])
    assert not options.is_test
    settings = read_settings(options, {}).settings
    assert settings.groups.initial_rebalance_delay_ms == 3_000
    assert settings.groups.offsets_partitions_count == 50
    assert parse_options(["--test-mode"]).is_test


def test_no_zeros_are_written_ahead_of_its_log(tmp_path: Path) -> None:
    """They hasten writes that wait for a device."""
    options = Options(None, (), str(tmp_path), is_test=True)
    settings = read_settings(options, {}).settings
    assert isinstance(settings.wal_settings, BlockWalSettings)
    changed = without_fill(settings)
    assert isinstance(changed.wal_settings, BlockWalSettings)
    assert settings.wal_settings.fill_ahead_bytes > changed.wal_settings.fill_ahead_bytes == 0
    words = ("s3.wal.path=0@s3://bucket?region=eu-central-1",)
    other = read_settings(Options(None, words, str(tmp_path), is_test=True), {}).settings
    assert without_fill(other) == other


def test_it_leaves_alone_what_is_to_be_kept(tmp_path: Path) -> None:
    """A folder that a start without it made is refused, and stays as it is; one for tests is taken again."""

    async def use() -> None:
        disk, new, kept = UnsyncedDisk(), f"{tmp_path}/new", f"{tmp_path}/kept"
        assert await take_folder(disk, new, f"{new}/metadata")
        await disk.make_folder(f"{new}/metadata")
        await write_meta_properties(disk, f"{new}/metadata", MetaProperties("c", 1, "d"))
        assert await take_folder(disk, new, f"{new}/metadata")
        await disk.make_folder(f"{kept}/metadata")
        await write_meta_properties(
            disk, f"{kept}/metadata", MetaProperties("c", 1, "AAAAAAAAAAAAAAAAAAAAAQ")
        )

    asyncio.run(use())
    words = [
        sys.executable,
        "-m",
        "millrace.broker",
        "serve",
        "--test-mode",
        "--data-dir",
        f"{tmp_path}/kept",
    ]
    words += ["--override", "listeners=PLAINTEXT://127.0.0.1:0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 2, done.stderr
    assert (
        f"{tmp_path}/kept was not made in test mode, which keeps nothing: say another --data-dir"
        in done.stderr
    )
    assert [path.name for path in (tmp_path / "kept").rglob("*")] == ["metadata", "meta.properties"]


def test_a_disk_without_the_device_keeps_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, logs and block files hold what was written, for the next process; nothing is waited for, and a
    failure is the project's error."""

    def refuse(fd: int) -> None:
        raise AssertionError

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(os, "fdatasync", refuse)

    async def use() -> None:
        disk = UnsyncedDisk()
        await disk.make_folder(f"{tmp_path}/a/b")
        await disk.make_folder(f"{tmp_path}/a/b")
        await disk.reserve(f"{tmp_path}/a/b/reserve", 8_192)
        assert (tmp_path / "a/b/reserve").stat().st_size == 8_192
        await disk.rename(f"{tmp_path}/a/b/reserve", f"{tmp_path}/a/b/moved")
        await disk.remove(f"{tmp_path}/a/b/moved")
        await disk.remove(f"{tmp_path}/a/b/moved")
        for folder in ("a/b", "a", "a"):
            await disk.remove_folder(f"{tmp_path}/{folder}")
        await disk.write_file(f"{tmp_path}/small", b"first")
        await disk.write_file(f"{tmp_path}/small", b"second")
        assert (await disk.read_file(f"{tmp_path}/small"), await disk.list_folder(str(tmp_path))) == (
            b"second",
            ["small"],
        )
        log = await disk.open_log(f"{tmp_path}/log")
        await log.append([b"one", b"two"])
        await log.sync()
        assert (log.size_bytes, await log.read_at(0, 10)) == (6, b"onetwo")
        await log.truncate(3)
        assert (log.size_bytes, await log.read_at(0, 10)) == (3, b"one")
        await log.close()
        block = await disk.open_block(f"{tmp_path}/block", 8_192)
        await block.write_at(4_096, memoryview(bytearray(b"x" * 4_096)))
        assert (block.is_direct, await block.read_at(4_096, 2)) == (False, b"xx")
        writing = block.write_at(0, memoryview(bytearray(b"y" * 4_096)))
        assert writing.done()  # no thread, no ring: in place
        with pytest.raises(DiskFailed):
            await block.write_at(-4_096, memoryview(bytearray(4_096)))
        for size_bytes in (12_288, 4_096):
            await block.resize(size_bytes)
            assert (block.size_bytes, (tmp_path / "block").stat().st_size) == (size_bytes, size_bytes)
        await block.close()
        with pytest.raises(Closed):
            block.write_at(0, memoryview(bytearray(4_096)))
        with pytest.raises((DiskFailed, DiskFull)):
            await disk.write_file(f"{tmp_path}/none/small", b"")
        with pytest.raises(DiskFailed):
            await disk.open_log(str(tmp_path))

    asyncio.run(use())
