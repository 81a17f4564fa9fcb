"""Work that can wait, a piece at a time, in one queue: whoever comes meanwhile is served between any two.

The loop runs all that is ready before it looks at its sockets again. Twenty reads of history that are each
ready for half a millisecond of work hold it for ten, and who waits for an acknowledgement comes through the
loop three times. In this queue they cost it half a millisecond each time. Therefore all that is large on a
loop stands in the same one.

Nor does such work hold the processor while a durable write is under way. The kernel ends such a write in
threads of its own, two or three times a write, on the processor that the disk interrupts: they wait there for
whoever runs, up to a time slice of some milliseconds, whatever other processors do. Before each piece the
loop offers its processor to who waits for it (sched_yield: half a microsecond where nobody does).

Kept true: pieces begin in the order in which they were asked for; nothing runs, and nothing is asked of the
loop, while the queue is empty.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from millrace.runtime.scheduling.yielding import Yielding

T = TypeVar("T")
WRITING_S = 1.0

_offer_processor: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


class DurableWrites:
    """The durable writes of a loop's disks, from their submission until they are seen to have ended: what is
    large makes way for them."""

    def __init__(self) -> None:
        self.in_flight_count = 0
        self._ended_at = -WRITING_S

    @property
    def is_writing(self) -> bool:
        """One is under way, or was this last second."""
        return self.in_flight_count > 0 or asyncio.get_running_loop().time() - self._ended_at < WRITING_S

    def begin(self) -> None:
        self.in_flight_count += 1

    def end(self) -> None:
        self.in_flight_count -= 1
        self._ended_at = asyncio.get_running_loop().time()


class YieldQueue:
    def __init__(self) -> None:
        self.writes = DurableWrites()
        self._callbacks: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Called in an iteration of the loop that no other of this queue has. What it raises is the loop's to
        tell."""
        self._callbacks.append(callback)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    async def yield_now(self) -> None:
        """The caller yields: it goes on when all that is queued before it has run. One that is cancelled
        meanwhile costs the others one iteration."""
        future = asyncio.get_running_loop().create_future()
        self.call_soon(partial(_wake, future))
        await future

    def _run(self) -> None:
        if self.writes.in_flight_count:
            _offer_processor()
        try:
            self._callbacks.popleft()()
        finally:
            asyncio.get_running_loop().call_soon(self._pass)

    def _pass(self) -> None:
        """In this iteration a task that was woken does its piece."""
        self._is_scheduled = bool(self._callbacks)
        if self._is_scheduled:
            asyncio.get_running_loop().call_soon(self._run)


async def yield_to_loop() -> None:
    """The caller yields, and is in no queue: all that is ready runs once before it goes on."""
    await asyncio.sleep(0)


async def run_yielding(
    generator: Yielding[T], yield_now: Callable[[], Awaitable[object]] = yield_to_loop
) -> T:
    """What the generator returns; the caller yields wherever it stops."""
    while True:
        try:
            next(generator)
        except StopIteration as end:
            found: T = end.value
            return found
        await yield_now()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
