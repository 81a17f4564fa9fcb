"""What a first start needs of its disks: all that will lie on one is added up before anything is made."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.broker.config import load
from millrace.broker.identity.first_room import check_first_room
from millrace.broker.settings.source import Given
from millrace.runtime.disk import DiskFull
from millrace.runtime.rand import Rand
from millrace.wal.kind import WalPlace
from tests.sim.disk import SimDisk
from tests.sim.loop import run_simulation

MIB = 1 << 20
ALONE, TOGETHER = {"/m": 1, "/o": 2, "/w": 3}, {"/m": 1, "/o": 1, "/w": 1}
METADATA, LOG, OBJECTS = 10, 64, 32 + 64


class Volumes(SimDisk):
    """`volumes`: the number of each folder's file system; all have the same room."""

    def __init__(self, volumes: dict[str, int], free_mib: int) -> None:
        super().__init__(capacity_bytes=free_mib * MIB)
        self._volumes = volumes

    def volume_of(self, path: str) -> int:
        return self._volumes[path[:2]]


def refusal(volumes: dict[str, int], free_mib: int, capacity: str = "") -> str | None:
    given = {
        "log.dirs": "/m/meta",
        "s3.data.buckets": "0@file:///o/data",
        "s3.wal.path": f"0@file:///w/wal{capacity}",
    }
    named = {key: Given(value, "override", "") for key, value in given.items()}
    settings = load(named, data_dir="/m", machine_bytes=1 << 30).settings
    disk = Volumes(volumes, free_mib)

    async def no_store(address: Any) -> Any:
        raise AssertionError("a ring needs no store")

    async def main() -> str | None:
        place = WalPlace(settings.wal, disk, no_store, Rand(b"place"), settings.wal_settings)
        try:
            await check_first_room(disk, settings, place)
        except DiskFull as error:
            return str(error)
        finally:
            assert disk.files == {}
        return None

    return run_simulation(lambda loop: main())


@pytest.mark.parametrize(
    ("volumes", "capacity", "least"),
    [
        (TOGETHER, "", METADATA + LOG + OBJECTS),
        (TOGETHER, "?capacity=16MiB", METADATA + 16 + 32 + 16),
        ({"/m": 1, "/o": 2, "/w": 1}, "", OBJECTS),
        ({"/m": 1, "/o": 1, "/w": 2}, "", METADATA + OBJECTS),
        (ALONE, "?capacity=300MiB", 300),
    ],
)
def test_needs_of_one_disk_are_added(volumes: dict[str, int], capacity: str, least: int) -> None:
    """The log takes its size at once, metadata ten MiB; a folder of objects leaves 32 MiB free, so that with
    less there is no upload ever."""
    assert refusal(volumes, least, capacity) is None
    found = refusal(volumes, least - 1, capacity)
    assert found is not None
    assert f"({least * MIB} bytes wanted, {(least - 1) * MIB} free)" in found


def test_what_is_needed_is_said() -> None:
    """By part, where several share the disk of the log."""
    assert refusal(ALONE, 90) == (
        f"/o/data: No space left on device for a new cluster ({96 * MIB} bytes wanted, {90 * MIB} free)"
    )
    assert refusal(TOGETHER, 150) == (
        f"/w/wal: No space left on device for {64 * MIB} bytes of log and {106 * MIB} of metadata and "
        "objects "
        f"({170 * MIB} bytes wanted, {150 * MIB} free)"
    )
