"""A broker whose wall clock is wrong by what a file says: `python -m tests.live.shifted FILE serve ...`, for
tests of a clock that is wrong at its start, or jumps. With `clock` in place of `serve` its clock is
confirmed.

The file is read whenever the clock is, and holds milliseconds; all else is the real thing.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import os
import subprocess
import sys
from pathlib import Path

from millrace.broker.cli import clock
from millrace.broker.cli.serve import kind_of, parse_options, read_settings, run_broker
from millrace.runtime.bundle import real_runtime
from millrace.runtime.clock import SystemClock
from tests.live import LiveBroker
from tests.patience import PATIENCE_S


class ShiftedClock:
    def __init__(self, shift: Path) -> None:
        self._shift = shift
        self._true = SystemClock()

    def wall_ms(self) -> int:
        return self._true.wall_ms() + int(self._shift.read_text())

    def asleep_ms(self) -> int:
        return 0

    def elapsed_ms(self) -> int:
        return self._true.elapsed_ms()


class ShiftedBroker(LiveBroker):
    """`shift_ms` may be changed while it runs."""

    @property
    def shift_path(self) -> Path:
        return self.folder / "shift"

    def shift(self, shift_ms: int) -> None:
        new = self.shift_path.with_suffix(".new")
        new.write_text(str(shift_ms))
        new.rename(self.shift_path)

    def confirm_clock(self) -> None:
        """What `millrace clock --confirm` does on the machine with that clock."""
        words = self.command()
        words[words.index("serve")] = "clock"
        subprocess.run(words, check=True, timeout=PATIENCE_S)

    def command(self) -> list[str]:
        if not self.shift_path.exists():
            self.shift(0)
        words = super().command()
        return [words[0], "-m", "tests.live.shifted", str(self.shift_path), *words[words.index("serve") :]]


async def serve(words: list[str]) -> int:
    settings = read_settings(parse_options(words[2:]), os.environ).settings
    runtime = dataclasses.replace(real_runtime(), clock=ShiftedClock(Path(words[0])))
    if words[1] == "clock":
        confirming = argparse.Namespace(confirm=True, anyway="--anyway" in words, json=False)
        return await clock.look(runtime, settings, confirming)
    return await run_broker(kind_of(settings)(settings, runtime), settings)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    sys.exit(asyncio.run(serve(sys.argv[1:])))
