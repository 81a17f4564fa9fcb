"""Whether a place holds a log already: told by its header, not by its name."""

from __future__ import annotations

import asyncio

import pytest

from millrace.runtime.disk import DiskLocked
from millrace.wal.block.device import identify
from millrace.wal.errors import WalForeign
from tests.sim.disk import SimDisk
from tests.wal.build import KIB, PATH, start_wal


def test_a_place_is_used_once_it_has_a_header() -> None:
    """Nothing, an empty device and a file of zeros are unused; a closed log is used, one that is open
    somebody's; another program's device is neither, and named as that."""

    async def run() -> None:
        disk = SimDisk()
        assert not await identify(disk, PATH)
        disk.add_device("/dev/disk/by-id/new", 256 * KIB)
        assert not await identify(disk, "/dev/disk/by-id/new")
        disk.add_device("/data/foreign", 256 * KIB)
        disk.files["/data/foreign"].durable[:8192] = disk.files["/data/foreign"].visible[:8192] = b"x" * 8192
        with pytest.raises(WalForeign):
            await identify(disk, "/data/foreign")
        wal, _, journal = await start_wal(disk)
        with pytest.raises(DiskLocked):
            await identify(disk, PATH)
        await journal.reach(wal.append(b"x").end)
        await wal.close()
        assert await identify(disk, PATH)
        assert disk.files[PATH].visible == disk.files[PATH].durable

    asyncio.run(run())
