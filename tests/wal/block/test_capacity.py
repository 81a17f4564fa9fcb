"""How large a block WAL becomes where nobody says it: by the room there is, once; what is there keeps its
size."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.runtime.disk import Disk, DiskFull
from millrace.runtime.disk.posix import PosixDisk
from millrace.runtime.objectstore.address import parse_address
from millrace.runtime.rand import Rand
from millrace.wal.block.capacity import LEAST_BYTES, MOST_BYTES, choose_capacity
from millrace.wal.block.kind import read_settings
from millrace.wal.block.layout import RING_START
from millrace.wal.kind import WalPlace, WalWords
from millrace.wal.log import WriteAheadLog
from millrace.wal.opening import check_room, open_wal
from tests.sim.disk import SimDisk
from tests.sim.loop import run_simulation
from tests.wal.build import owner

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("free_bytes", "capacity_bytes"),
    [
        (0, LEAST_BYTES),
        (640 * MIB - 1, LEAST_BYTES),
        (1279 * MIB, LEAST_BYTES),
        (1280 * MIB, 128 * MIB),
        (10 * GIB - 1, 512 * MIB),
        (10 * GIB, GIB),
        (20 * GIB, MOST_BYTES),
        (1 << 60, MOST_BYTES),
    ],
)
def test_the_rule(free_bytes: int, capacity_bytes: int) -> None:
    """The largest power of two within a tenth of what is free, between 64 MiB and 2 GiB."""
    assert choose_capacity(free_bytes) == capacity_bytes


def place_on(disk: Disk, **options: str) -> WalPlace:
    async def no_store(address: Any) -> Any:
        raise AssertionError("a ring needs no store")

    words = "&".join(f"{name}={value}" for name, value in options.items())
    address = parse_address(f"0@file:///data/wal?{words}")
    settings = read_settings(WalWords(address.options, "prefer", "refuse"))
    return WalPlace(address, disk, no_store, Rand(b"place"), settings)


def test_a_new_log_makes_its_folder(tmp_path: Path) -> None:
    """Which went with the disk of the log before it, whose loss is accepted."""

    async def main() -> None:
        place = place_on(PosixDisk(), capacity="1MiB")
        wal = await open_wal(
            replace(place, address=parse_address(f"0@file://{tmp_path}/lost/too/wal")), owner(1)
        )
        await wal.close()

    asyncio.run(main())
    assert (tmp_path / "lost" / "too" / "wal").stat().st_size == MIB


async def opened(disk: SimDisk, epoch: int, **options: str) -> int:
    """The size of the file, of a log that was opened, recovered and reset, as a start does."""
    wal: WriteAheadLog = await open_wal(place_on(disk, **options), owner(epoch))
    assert [record async for record in wal.recover()] == []
    await wal.reset()
    await wal.close()
    return disk.used_bytes()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if "is new" in record.getMessage()]
    caplog.clear()
    return found


def test_a_new_log_takes_what_fits_and_keeps_it(caplog: pytest.LogCaptureFixture) -> None:
    """A small disk gets a small log, and is told so with both sizes and the setting; later starts keep it,
    whatever is free by then."""

    async def main() -> None:
        disk = SimDisk(capacity_bytes=700 * MIB)
        with caplog.at_level(logging.INFO):
            assert await opened(disk, 1) == LEAST_BYTES
            assert told(caplog) == [
                f"WAL /data/wal is new: it takes {LEAST_BYTES} bytes (64 MiB) at once, of {700 * MIB} that "
                "are free there; "
                "s3.wal.capacity gives it another size"
            ]
            disk.capacity_bytes = 1 << 40
            assert await opened(disk, 2) == LEAST_BYTES
            assert await opened(disk, 3, capacity="128MiB") == 128 * MIB
            assert await opened(disk, 4) == 128 * MIB
            assert told(caplog) == []

    run_simulation(lambda loop: main())


def test_what_was_asked_for_is_not_made_smaller(caplog: pytest.LogCaptureFixture) -> None:
    """A capacity of the operator's is taken as it is, or refused with the bytes that are wanted and those
    that are free; nothing is made."""

    async def main() -> None:
        disk = SimDisk(capacity_bytes=200 * MIB)
        for attempt in (
            lambda: check_room(place_on(disk, capacity="1GiB")),
            lambda: opened(disk, 1, capacity="1GiB"),
        ):
            with pytest.raises(DiskFull) as full:
                await attempt()
            assert str(full.value) == (
                f"/data/wal: No space left on device ({GIB} bytes wanted, {200 * MIB} free)"
            )
        assert disk.files == {}
        assert await opened(disk, 1, capacity="150MiB") == 150 * MIB

    run_simulation(lambda loop: main())


def test_no_room_for_the_least_log() -> None:
    """Below 64 MiB of room a start is refused, and says how much is wanted."""

    async def main() -> None:
        disk = SimDisk(capacity_bytes=50 * MIB)
        with pytest.raises(DiskFull, match=f"{LEAST_BYTES} bytes wanted, {50 * MIB} free"):
            await check_room(place_on(disk))
        assert disk.files == {}

    run_simulation(lambda loop: main())


def test_a_place_of_a_given_size_is_used_as_a_whole(caplog: pytest.LogCaptureFixture) -> None:
    """A file that was made for the log beforehand, or a device: no more than it has, whatever is free around
    it; and that is told, for the size was nobody's choice where a start was killed over a larger one."""

    async def main() -> None:
        for is_device in (False, True):
            disk = SimDisk(capacity_bytes=1 << 40)
            size_bytes = RING_START + (8 if is_device else 96) * MIB
            if is_device:
                disk.add_device("/data/wal", size_bytes)
            else:
                await (await disk.open_block("/data/wal", size_bytes)).close()
            with caplog.at_level(logging.INFO):
                await opened(disk, 1)
                assert len(disk.files["/data/wal"].visible) == size_bytes
                assert told(caplog) == [
                    f"WAL /data/wal is new: it takes {size_bytes} bytes ({size_bytes // MIB} MiB) that are "
                    "there without a log; s3.wal.capacity gives it another size"
                ]
                await opened(disk, 2)
                assert told(caplog) == []

    run_simulation(lambda loop: main())


def test_what_is_left_of_making_a_log_is_made_as_a_new_one(caplog: pytest.LogCaptureFixture) -> None:
    """A file shorter than any log that nobody gave a size: the start that made it was killed while zeros were
    written. It becomes what a new log would, and says so; with a capacity, what was asked for."""

    async def main() -> None:
        for length, capacity, becomes in (
            (RING_START - 4096, "", 128 * MIB),
            (RING_START, "", 128 * MIB),
            (LEAST_BYTES - 4096, "", 128 * MIB),
            (RING_START, "1MiB", MIB),
        ):
            disk = SimDisk(capacity_bytes=1400 * MIB)
            await (await disk.open_block("/data/wal", length)).close()
            with caplog.at_level(logging.INFO):
                assert await opened(disk, 1, **({"capacity": capacity} if capacity else {})) == becomes
            assert len(told(caplog)) == (not capacity)

    run_simulation(lambda loop: main())
