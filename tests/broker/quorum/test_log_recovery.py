"""A recovery that is broken off leaves no log open behind it; one that fails says what can be done."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from millrace.broker.quorum.log_recovery import (
    STALLED_S,
    LogDamaged,
    LogRecovery,
    LogUnreachable,
    _unless_stalled,
)
from millrace.wal.errors import WalClaimLost, WalCorrupt
from tests.sim.loop import SimLoop, run_simulation


class Broken(LogRecovery):
    """Of node 2, whose log is found at an address, and cannot be recovered for `error`."""

    def __init__(self, error: Exception) -> None:
        self._node_id = 2
        self._error = error

    async def _recover(self, found: Any, client: Any, owner: Any) -> None:
        raise self._error

    async def failure(self) -> LogUnreachable:
        class Wal:
            address = "file:///wal"

        class Place:
            wal = Wal

        with pytest.raises(LogUnreachable) as caught:
            await self._recover_sound(cast(Any, Place), cast(Any, None), cast(Any, None))
        return caught.value


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


def test_a_claim_that_is_lost_is_no_damage_of_the_log() -> None:
    """Nothing of the log has to be given up: it is looked at again soon, and nobody is told to put a copy
    there or to give it up. Of a damaged record they are."""

    async def main(loop: SimLoop) -> None:
        lost = await Broken(WalClaimLost(8192)).failure()
        assert not isinstance(lost, LogDamaged)
        assert "the next attempt writes a claim over it" in str(lost)
        assert "give-up" not in str(lost)
        damaged = await Broken(WalCorrupt(7, "a wrong checksum")).failure()
        assert isinstance(damaged, LogDamaged)
        assert "millrace cluster give-up 2 --accept-loss" in str(damaged)

    run_simulation(main)
