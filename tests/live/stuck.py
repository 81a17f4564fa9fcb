"""A broker whose controller can be made to hang: `python -m tests.live.stuck STUCK SHIFT serve ...`, for
tests of who waits for it, and how long.

While the file STUCK is there no log file of its disk becomes durable, and so no metadata; the WAL, a block
file, goes on. Its clock is wrong by what the file SHIFT says (shifted.py).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import sys
from pathlib import Path
from typing import Any

from millrace.broker.app import Broker
from millrace.broker.cli.serve import parse_options, read_settings, run_broker
from millrace.runtime.bundle import real_runtime
from millrace.runtime.disk import Disk, LogFile
from tests.live.shifted import ShiftedBroker, ShiftedClock

LOOK_S = 0.01


class StuckLog:
    """All else is the log file's own."""

    def __init__(self, file: LogFile, stuck: Path) -> None:
        self._file = file
        self._stuck = stuck

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    async def sync(self) -> None:
        while self._stuck.exists():  # noqa: ASYNC110, the file is another process's
            await asyncio.sleep(LOOK_S)
        await self._file.sync()


class StuckDisk:
    """All else is the disk's own."""

    def __init__(self, disk: Disk, stuck: Path) -> None:
        self._disk = disk
        self._stuck = stuck

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    async def open_log(self, path: str) -> Any:
        return StuckLog(await self._disk.open_log(path), self._stuck)


class StuckBroker(ShiftedBroker):
    @property
    def stuck_path(self) -> Path:
        return self.folder / "stuck"

    def command(self) -> list[str]:
        words = super().command()
        shift, *serving = words[words.index("tests.live.shifted") + 1 :]
        return [words[0], "-m", "tests.live.stuck", str(self.stuck_path), shift, *serving]


async def serve(words: list[str]) -> int:
    settings = read_settings(parse_options(words[3:]), os.environ).settings
    real = real_runtime()
    disk: Any = StuckDisk(real.disk, Path(words[0]))
    runtime = dataclasses.replace(real, clock=ShiftedClock(Path(words[1])), disk=disk)
    return await run_broker(Broker(settings, runtime), settings)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    sys.exit(asyncio.run(serve(sys.argv[1:])))
