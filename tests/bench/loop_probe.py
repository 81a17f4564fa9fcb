"""The broker with a probe on its event loop: how late a timer runs there, and how much of that the loop
itself was at work.

    python -m tests.bench.loop_probe FILE serve ...      the rest as `python -m millrace.broker`

A timer each 2 ms. Late by the clock: what a request would have waited that came at that moment, other
processes' share of the processors included. Late by work: the part of it in which the loop's own thread ran,
so that a busy neighbour does not count; it is the longest that one iteration of the loop, all its callbacks
together, held who came meanwhile. At SIGUSR2 both lists are written to FILE, in microseconds, and begun anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import uvloop

TICK_S = 0.002


class LoopProbe:
    def __init__(self, loop: asyncio.AbstractEventLoop, file: Path) -> None:
        self._loop = loop
        self._file = file
        self.late_us: list[int] = []
        self.worked_us: list[int] = []
        self._due = loop.time() + TICK_S
        self._worked = time.thread_time()
        loop.add_signal_handler(signal.SIGUSR2, self.tell)
        loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        late = max(0.0, time.monotonic() - self._due)
        worked = time.thread_time() - self._worked
        self.late_us.append(int(late * 1e6))
        # What was done before the timer was due is nobody's wait: of the work since the last tick, no more
        # than the lateness counts.
        self.worked_us.append(int(min(late, worked) * 1e6))
        self._due = self._loop.time() + TICK_S
        self._worked = time.thread_time()
        self._loop.call_at(self._due, self._tick)

    def tell(self) -> None:
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps({"late": self.late_us, "worked": self.worked_us}))
        part.replace(self._file)
        self.late_us, self.worked_us = [], []


def ask(pid: int, file: Path) -> tuple[list[int], list[int]]:
    """From another process: both lists since the last time, sorted."""
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    while not file.exists():
        time.sleep(0.01)
    told = json.loads(file.read_text())
    return sorted(told["late"]), sorted(told["worked"])


def main() -> None:
    file = Path(sys.argv.pop(1))
    new_loop = uvloop.new_event_loop

    def new_probed_loop() -> uvloop.Loop:
        loop = new_loop()
        loop.call_soon(lambda: LoopProbe(loop, file))
        return loop

    uvloop.new_event_loop = new_probed_loop
    from millrace.broker.__main__ import main as serve

    sys.exit(serve())


if __name__ == "__main__":
    main()
