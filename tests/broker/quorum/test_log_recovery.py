"""A recovery that is broken off leaves no log open behind it."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.quorum.log_recovery import STALLED_S, LogUnreachable, _unless_stalled
from tests.sim.loop import SimLoop, run_simulation


class Log:
    is_open = False

    async def open(self, on_end: list[asyncio.Task[Log]], took_s: float = 1.0) -> Log:
        """Cancels who waits for it in the moment in which it is open."""
        await asyncio.sleep(took_s)
        self.is_open = True
        for task in on_end:
            task.cancel()
        return self

    async def close(self) -> None:
        await asyncio.sleep(0.1)
        self.is_open = False


def test_a_log_that_is_open_when_nobody_waits_any_more_is_closed() -> None:
    async def main(loop: SimLoop) -> None:
        log, waiting = Log(), list[asyncio.Task[Log]]()
        task = loop.create_task(_unless_stalled(log.open(waiting), str, Log.close))
        waiting.append(task)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not log.is_open

    run_simulation(main)


def test_a_log_that_is_waited_for_stays_open() -> None:
    async def main(loop: SimLoop) -> None:
        assert (await _unless_stalled(Log().open([]), str, Log.close)).is_open

    run_simulation(main)


def test_a_store_that_does_not_answer_breaks_it_off() -> None:
    async def main(loop: SimLoop) -> None:
        began_s = loop.time()
        with pytest.raises(LogUnreachable, match="the bucket is away"):
            await _unless_stalled(Log().open([], 1e6), lambda: "the bucket is away", Log.close)
        assert STALLED_S < loop.time() - began_s < 2 * STALLED_S

    run_simulation(main)
