"""The block WAL on real files: both drivers, both ways of writing, kill -9, a second process, a loop
device."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.runtime.disk import DiskLocked
from millrace.runtime.disk.posix import PosixDisk
from millrace.wal.block.log import BlockWal
from millrace.wal.config import BlockWalSettings
from tests.patience import next_line
from tests.runtime.disk.test_block import DRIVERS, refuse_direct
from tests.wal.build import KIB, Journal, owner, payload

MIB = 1024 * KIB
SETTINGS = BlockWalSettings(capacity_bytes=2 * MIB, max_record_bytes=512 * KIB, fill_ahead_bytes=1 * MIB)
LARGER = BlockWalSettings(capacity_bytes=64 * MIB, fill_ahead_bytes=MIB)


@pytest.fixture(autouse=True)
def no_finalizer_raises(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of what a test leaves; what others left is collected before."""
    gc.collect()
    raised: list[str] = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda seen: raised.append(f"{seen.object!r}: {seen.exc_value!r}")
    )
    yield
    gc.collect()
    assert raised == []


async def start_on(
    disk: PosixDisk, path: str, epoch: int, settings: BlockWalSettings = SETTINGS
) -> tuple[BlockWal, list[bytes], Journal]:
    wal = await BlockWal.open(disk, path, settings, owner(epoch))
    recovered = [bytes(record.payload) async for record in wal.recover()]
    journal = Journal()
    wal.start(journal.on_confirmed, journal.on_failed)
    return wal, recovered, journal


def written_bytes() -> int:
    """What this process has sent to disks so far."""
    found = re.search(r"^write_bytes: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)
    assert found is not None
    return int(found.group(1))


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "buffered"])
def test_laps_on_a_file(driver: str, is_direct: bool, tmp_path: Path) -> None:
    """Several laps of records of all sizes with trims and reopenings, while zeros are filled in ahead."""

    async def run() -> None:
        disk = PosixDisk(driver=driver) if is_direct else PosixDisk(driver=driver, open_fd=refuse_direct)
        expected: list[bytes] = []
        number = 0
        for epoch in range(1, 5):
            wal, recovered, journal = await start_on(disk, str(tmp_path / "wal"), epoch)
            assert recovered == expected
            expected = []
            for _ in range(40):
                batch = []
                for _ in range(1 + number % 7):
                    batch.append(
                        payload(number, 100 + number * 7919 % (300 * KIB if number % 20 == 0 else 20 * KIB))
                    )
                    record = wal.append(batch[-1])
                    number += 1
                await journal.reach(record.end)
                await wal.trim(record.position)
                expected = [batch[-1]]
            assert not journal.failures
            await wal.close()
        assert wal.confirmed_end > 2 * wal.capacity_bytes

    asyncio.run(run())


WRITER = """
import asyncio, sys
from millrace.runtime.disk.posix import PosixDisk
from tests.wal.block.test_real_files import LARGER, start_on
from tests.wal.build import payload
async def run(path, epoch, driver):
    wal, recovered, journal = await start_on(PosixDisk(driver=driver), path, epoch, LARGER)
    print("recovered", len(recovered), flush=True)
    number = len(recovered)
    while True:
        for _ in range(5):
            record = wal.append(payload(number, 200))
            number += 1
        await journal.reach(record.end)
        print(number, flush=True)
asyncio.run(run(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
"""


@pytest.mark.parametrize("driver", DRIVERS)
def test_kill_9_loses_nothing_that_was_confirmed(driver: str, tmp_path: Path) -> None:
    """A writer is killed three times; each next one finds at least what had been confirmed, in order, and
    goes on."""
    path, told = str(tmp_path / "wal"), 0
    for epoch in (1, 2, 3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, path, str(epoch), driver], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        assert int(next_line(writer.stdout).split()[1]) >= told
        for _ in range(20):
            told = int(next_line(writer.stdout))
        writer.kill()
        with writer.stdout as rest:
            told = [int(line) for line in rest.read().split()][-1:][0] if not writer.wait() else told

    async def run() -> None:
        _, recovered, _ = await start_on(PosixDisk(), path, 9, LARGER)
        assert len(recovered) >= told
        assert recovered == [payload(number, 200) for number in range(len(recovered))]

    asyncio.run(run())


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """While one process writes the log, another cannot even open it."""
    path = str(tmp_path / "wal")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path, "1", "auto"], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    next_line(writer.stdout)
    writer.send_signal(signal.SIGSTOP)

    async def run() -> None:
        with pytest.raises(DiskLocked):
            await start_on(PosixDisk(), path, 2, LARGER)

    try:
        asyncio.run(run())
    finally:
        writer.kill()
        writer.communicate()


@pytest.mark.parametrize("size", [1, 5000, 100_000])
def test_a_file_whose_making_was_cut_is_finished(size: int, tmp_path: Path) -> None:
    """A file of zeros of any size, left by a power cut while it was made, becomes a log of the full
    capacity."""

    async def run() -> None:
        path = tmp_path / "wal"
        path.write_bytes(bytes(size))
        wal, recovered, journal = await start_on(PosixDisk(), str(path), 1)
        assert recovered == []
        await journal.reach(wal.append(b"x").end)
        await wal.close()
        assert path.stat().st_size == SETTINGS.capacity_bytes

    asyncio.run(run())


def test_the_first_start_is_quick(tmp_path: Path) -> None:
    """A log of the default capacity is open, recovered and ready on a new file without writing all of it."""

    async def run() -> None:
        before = written_bytes()
        wal, _, journal = await start_on(PosixDisk(), str(tmp_path / "wal"), 1, BlockWalSettings())
        await journal.reach(wal.append(b"first").end)
        assert written_bytes() - before < 512 * MIB
        assert wal.capacity_bytes > 2047 * MIB
        assert (tmp_path / "wal").stat().st_blocks * 512 >= 2048 * MIB
        await wal.close()

    if shutil.disk_usage(tmp_path).free < 8 * 1024 * MIB:
        pytest.skip("not enough room on this disk")
    asyncio.run(run())


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("losetup") is None, reason="needs root and losetup")
def test_a_loop_device_is_a_raw_device(tmp_path: Path) -> None:
    """On a block device the log keeps to its capacity, survives reopening and refuses a capacity beyond the
    device."""
    backing = tmp_path / "backing"
    backing.write_bytes(bytes(4 * MIB))
    made = subprocess.run(["losetup", "--find", "--show", str(backing)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(made.stderr)
    device = made.stdout.strip()

    async def run() -> None:
        wal, recovered, journal = await start_on(PosixDisk(), device, 1)
        assert recovered == []
        await journal.reach(wal.append(payload(1, 9000)).end)
        await wal.close()
        wal, recovered, _ = await start_on(PosixDisk(), device, 2)
        assert recovered == [payload(1, 9000)]
        await wal.close()

    try:
        asyncio.run(run())
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)
