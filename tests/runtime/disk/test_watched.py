"""A disk that is watched: for how long a block file gives no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.runtime.disk import BLOCK_BYTES
from millrace.runtime.disk.aligned import Arena
from millrace.runtime.disk.posix import PosixDisk
from millrace.runtime.disk.watched import DiskWatch, watched
from tests.sim.disk import SimDisk
from tests.sim.loop import SimLoop, run_simulation

LATENCY_S = 2.0
BLOCKS = 4 * BLOCK_BYTES


@pytest.mark.parametrize("operation", ["list", "open", "write", "write and read", "read", "close"])
def test_what_is_under_way_is_seen(operation: str) -> None:
    async def main(loop: SimLoop) -> None:
        disk, watch = SimDisk(), DiskWatch()
        seen = watched(disk, watch)
        file = await seen.open_block("wal", BLOCKS)
        block, into = memoryview(bytearray(BLOCK_BYTES)), memoryview(bytearray(BLOCK_BYTES))
        operations: dict[str, Callable[[], Any]] = {
            "list": lambda: seen.list_folder("."),
            "open": lambda: seen.open_block("other", BLOCKS),
            "write": lambda: file.write_at(0, block),
            "write and read": lambda: file.write_then_read(0, block, 0, into),
            "read": lambda: file.read_at(0, BLOCK_BYTES),
            "close": file.close,
        }
        disk.latency_s = LATENCY_S
        if operation == "close":
            file.write_at(0, block)
        assert operation == "close" or watch.waits_s == 0
        done = asyncio.ensure_future(operations[operation]())
        await asyncio.sleep(LATENCY_S / 4)
        assert watch.waits_s == pytest.approx(LATENCY_S / 4)
        await done
        await asyncio.sleep(0)
        assert watch.waits_s == 0

    run_simulation(main)


def test_a_watched_file_is_the_file_that_it_is(tmp_path: Path) -> None:
    """On a real disk; its size is what it has become."""

    async def main() -> None:
        watch = DiskWatch()
        disk = watched(PosixDisk(), watch)
        path = str(tmp_path / "wal")
        file = await disk.open_block(path, BLOCKS, direct="never")
        block = Arena(BLOCK_BYTES).view
        block[:] = b"x" * BLOCK_BYTES
        await file.write_at(BLOCK_BYTES, block)
        assert bytes(await file.read_at(BLOCK_BYTES, BLOCK_BYTES)) == bytes(block)
        await file.resize(2 * BLOCKS)
        assert file.size_bytes == 2 * BLOCKS
        assert await file.reserve(1, 0) is False
        await file.close()
        assert await disk.list_folder(str(tmp_path)) == ["wal"]
        assert watch.waits_s == 0

    asyncio.run(main())
