"""Steps of work that can wait, one at a time between turns of the event loop: whoever comes meanwhile is
served between any two.

A turn runs all that is ready before it looks at its sockets again. Twenty reads of history that are each
ready for half a millisecond of work hold it for ten, and who waits for an acknowledgement comes through the
loop three times. In line here they cost it half a millisecond each time.

Nor do steps hold the processor while a durable write is under way. The kernel ends such a write in threads of
its own, two or three times a write, on the processor that the disk interrupts: they wait there for whoever
runs, up to a slice of the scheduler's of some milliseconds, whatever other processors do. Before a step the
loop offers its processor to who waits for it (sched_yield: half a microsecond where nobody does).

Kept true: steps begin in the order in which they were asked for; nothing runs, and nothing is asked of the
loop, while nobody is in line.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

from millrace.runtime.stepped import Steps

T = TypeVar("T")
WRITING_S = 1.0


class StepLine:
    """Knows besides what who stands in line makes way for: the loop's durable writes, from their submission
    until they are seen to have ended."""

    def __init__(self) -> None:
        self.writes_in_flight = 0
        self._wrote_at = -WRITING_S
        self._steps: deque[Callable[[], None]] = deque()
        self._is_moving = False

    @property
    def is_writing(self) -> bool:
        """A durable write is under way, or was this last second."""
        return self.writes_in_flight > 0 or asyncio.get_running_loop().time() - self._wrote_at < WRITING_S

    def begin_write(self) -> None:
        self.writes_in_flight += 1

    def end_write(self) -> None:
        self.writes_in_flight -= 1
        self._wrote_at = asyncio.get_running_loop().time()

    def call(self, step: Callable[[], None]) -> None:
        """Called in a turn of its own. A step keeps its exceptions to itself."""
        self._steps.append(step)
        if not self._is_moving:
            self._is_moving = True
            asyncio.get_running_loop().call_soon(self._run)

    async def turn(self) -> None:
        """Returns when the caller's step is next. Who is cancelled meanwhile costs the others one turn."""
        future = asyncio.get_running_loop().create_future()
        self.call(partial(_wake, future))
        await future

    def _run(self) -> None:
        if self.writes_in_flight:
            _offer_processor()
        try:
            self._steps.popleft()()
        finally:
            asyncio.get_running_loop().call_soon(self._pass)

    def _pass(self) -> None:
        """In this turn a task that was woken does its step."""
        self._is_moving = bool(self._steps)
        if self._is_moving:
            asyncio.get_running_loop().call_soon(self._run)


async def in_steps(steps: Steps[T], pause: Callable[[], Awaitable[object]]) -> T:
    """What the steps come to; whoever `pause` gives way to has the loop between any two."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        await pause()


def line_of(loop: asyncio.AbstractEventLoop) -> StepLine:
    """The loop's own: all that is large on a loop stands in one line."""
    line = _LINES.get(loop)
    if line is None:
        line = _LINES[loop] = StepLine()
    return line


_offer_processor: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
_LINES: WeakKeyDictionary[asyncio.AbstractEventLoop, StepLine] = WeakKeyDictionary()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
