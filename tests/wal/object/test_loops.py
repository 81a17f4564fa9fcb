"""The object WAL on the loops that brokers run on: what it asks of a loop, both give."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
import uvloop

from millrace.runtime.clock import SystemClock
from millrace.runtime.disk import Buffer
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.runtime.rand import Rand
from millrace.wal.object.log import ObjectWal
from tests.patience import PATIENCE_S
from tests.wal.build import Journal, owner, payload
from tests.wal.object.build import small_settings

LOOPS: dict[str, Callable[[Coroutine[Any, Any, Any]], Any]] = {"asyncio": asyncio.run, "uvloop": uvloop.run}


class HeldStore(MemoryObjectStore):
    """Puts answer when the test says so; `held` in the order in which they came."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.is_holding = False
        self.held: list[asyncio.Future[None]] = []

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        if self.is_holding:
            self.held.append(asyncio.get_running_loop().create_future())
            await self.held[-1]
        await super().put_if_absent(key, parts)

    def release(self) -> None:
        """The oldest put that is still under way."""
        next(put for put in self.held if not put.done()).set_result(None)


@pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)
def test_a_wait_below_half_a_millisecond_is_like_any_other(
    run: Callable[[Coroutine[Any, Any, Any]], Any],
) -> None:
    """An open batch has 0.3 ms left to wait when an earlier upload is confirmed. The batch's age is looked at
    again then; uvloop has answered so short a wait with a handle that knows no time."""

    async def trial() -> None:
        store = HeldStore()
        wal = await ObjectWal.open(store, small_settings(), owner(1), Rand(b"wal"))
        async for _ in wal.recover():
            pass
        journal, loop = Journal(), asyncio.get_running_loop()
        wal.start(journal.on_confirmed, journal.on_failed)
        for _ in range(64):
            wal.hedging.on_uploaded(20.3)  # uploads begin so far apart, and are put twice
        store.is_holding = True
        wal.append(payload(1))
        await asyncio.sleep(0.03)
        wal.append(payload(2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        began = loop.time()
        while loop.time() < began + 0.020:
            pass
        record = wal.append(payload(3))
        store.release()
        for _ in range(20):
            await asyncio.sleep(0)
        store.is_holding = False
        for put in store.held:
            if not put.done():
                put.set_result(None)
        async with asyncio.timeout(PATIENCE_S):
            await journal.reach(record.end)
        assert not journal.failures
        await wal.close()

    for _ in range(10):
        run(trial())
