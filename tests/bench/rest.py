"""Whether a process rests: what it writes and computes between two looks at it, and what the kernel still has
to write for it."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from tests.cpu import cpu_seconds

LOOK_S = 0.25
PATIENCE_S = 15.0
WRITTEN_BYTES_MAX = 1 << 20
BUSY_SHARE_MAX = 0.2


@dataclass(frozen=True, slots=True)
class Effort:
    """Of a process so far."""

    at_s: float
    written_bytes: int
    cpu_s: float

    @staticmethod
    def read(pid: int) -> Effort:
        counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        return Effort(time.monotonic(), int(counts["write_bytes"]), cpu_seconds(pid))

    def is_rest(self, before: Effort) -> bool:
        busy = (self.cpu_s - before.cpu_s) / (self.at_s - before.at_s)
        return self.written_bytes - before.written_bytes <= WRITTEN_BYTES_MAX and busy <= BUSY_SHARE_MAX


async def wait_rest(pid: int, patience_s: float = PATIENCE_S) -> bool:
    """Returns when the process has done next to nothing at two looks in a row, for a write that waits for the
    disk looks like rest; False when patience ended before that."""
    ends_s, last, rested = time.monotonic() + patience_s, Effort.read(pid), 0
    while rested < 2 and time.monotonic() < ends_s:
        await asyncio.sleep(LOOK_S)
        now = Effort.read(pid)
        rested = rested + 1 if now.is_rest(last) else 0
        last = now
    await asyncio.to_thread(os.sync)  # returns when what was dirty is on the disk
    return rested == 2
