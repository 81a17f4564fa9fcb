"""Devices that hang, as all else of the process has it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.wal.block import device
from tests.patience import PATIENCE_S, eventually
from tests.runtime.disk.hanging import OPERATIONS, Hanging, hang, make_log

LOGS = 40  # more than the loop has threads of its own


@pytest.mark.parametrize("operation", OPERATIONS)
def test_devices_that_hang_take_no_thread_from_others(
    operation: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However many: the metadata log of the broker that looks at them is on another disk."""

    hanging = Hanging()

    async def main() -> None:
        for n in range(LOGS):
            await make_log(str(tmp_path / f"wal{n}"))
        disk = hang(hanging, monkeypatch, operation)
        looks = [asyncio.ensure_future(device.identify(disk, str(tmp_path / f"wal{n}"))) for n in range(LOGS)]
        try:
            await eventually(lambda: hanging.begun == LOGS)
            async with asyncio.timeout(PATIENCE_S):
                assert await disk.read_file(str(tmp_path / "none")) is None
        finally:
            hanging.answers.set()
        await asyncio.gather(*looks, return_exceptions=True)

    asyncio.run(main())


def test_a_process_ends_while_a_device_hangs(tmp_path: Path) -> None:
    """What waits for it waits for ever."""
    program = f"""
import asyncio, os, threading
from millrace.broker.__main__ import run_loop
from millrace.runtime.disk.posix import PosixDisk
asked = threading.Event()
def hung(*args):
    asked.set()
    threading.Event().wait()
async def main():
    opening = asyncio.ensure_future(PosixDisk(open_fd=hung).open_block({str(tmp_path / "wal")!r}, 8192))
    while not asked.is_set():
        await asyncio.sleep(0.01)
    opening.cancel()
    return 0
raise SystemExit(run_loop(main()))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=PATIENCE_S).returncode == 0
