"""The broker on the library's event loop with a watch on each callback: how long one ran, in CPU time of the
loop's own thread.

    python -m tests.bench.callback_probe FILE serve ...      the rest as `python -m millrace.broker`

CPU time, so that a busy neighbour does not count. uvloop shows nobody its callbacks, so the library's loop
stands in for it: the callbacks are the same code of ours, and what the loop itself does is not what is looked
for. The process is sampled each SAMPLE_S of its CPU time; of a callback that ran longer than SAMPLED_FROM_S
the function of ours that most samples were in is told.

At SIGUSR2 the longest callbacks since the last time are written to FILE as JSON: [[milliseconds, name,
place], ...], longest first.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio import events
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

SAMPLE_S = 0.002
SAMPLED_FROM_S = 0.010
KEPT_MAX = 10
PLACES_A_SAMPLE = 4
HERE = str(Path(__file__).parents[2])


class CallbackProbe:
    """Watches every callback of all loops of this thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._longest: list[tuple[float, str, str]] = []
        self._samples: list[str] = []

    def install(self) -> None:
        handles: Any = events.Handle
        run: Callable[[Any], None] = handles._run
        clock = time.thread_time

        def watched(handle: events.Handle) -> None:
            began_s = clock()
            run(handle)
            took_s = clock() - began_s
            if self._samples or took_s > SAMPLED_FROM_S:
                self._note(handle, took_s)

        handles._run = watched
        signal.signal(signal.SIGPROF, self._sample)
        signal.siginterrupt(signal.SIGPROF, False)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tells at SIGUSR2 from then on."""
        loop.call_soon(lambda: loop.add_signal_handler(signal.SIGUSR2, self.tell))

    def _sample(self, number: int, frame: FrameType | None) -> None:
        places: list[str] = []
        while frame is not None and len(places) < PLACES_A_SAMPLE:
            code = frame.f_code
            if code.co_filename.startswith(HERE) and code.co_filename != __file__:
                places.append(f"{Path(code.co_filename).stem}.{code.co_qualname}:{frame.f_lineno}")
            frame = frame.f_back
        self._samples.append(" < ".join(places))

    def _note(self, handle: events.Handle, took_s: float) -> None:
        samples, self._samples = self._samples, []
        if took_s <= SAMPLED_FROM_S:
            return
        place = "; ".join(f"{count} {place}" for place, count in Counter(samples).most_common(5))
        self._longest.append((took_s * 1000, name_of(handle), place))
        self._longest.sort(reverse=True)
        del self._longest[KEPT_MAX:]

    def tell(self) -> None:
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(self._longest))
        part.replace(self._file)
        self._longest = []


def name_of(handle: events.Handle) -> str:
    """The callback, or what the task whose step it was runs."""
    callback: Any = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine: Any = task.get_coro()
        return f"{coroutine.__qualname__} ({task.get_name()})"
    return str(getattr(callback, "__qualname__", callback))


def ask(pid: int, file: Path) -> list[tuple[float, str, str]]:
    """From another process: (milliseconds, name, place) of the longest callbacks since the last time, longest
    first; none at all where all were shorter than SAMPLED_FROM_S."""
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    while not file.exists():
        time.sleep(0.01)
    return [(float(took_ms), str(name), str(place)) for took_ms, name, place in json.loads(file.read_text())]


def main() -> None:
    probe = CallbackProbe(Path(sys.argv.pop(1)))
    from millrace.broker.cli import run
    from millrace.broker.cli.output import take_over

    def new_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        probe.watch(loop)
        return loop

    def run_loop(coroutine: Any) -> int:
        probe.install()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            code: int = runner.run(coroutine)
            return code

    take_over(is_lasting=True)
    sys.exit(run(sys.argv[1:], os.environ, run_loop))


if __name__ == "__main__":
    main()
