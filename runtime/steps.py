"""Steps of work that can wait, one a turn of the event loop: whoever comes meanwhile is served between any two.

A turn runs all that is ready before it looks at its sockets again. Twenty reads of history that are each ready for half a millisecond of work
hold it for ten, and who waits for an acknowledgement comes through the loop three times. In line here they cost it half a millisecond each time.
Kept true: steps begin in the order in which they were asked for; nothing runs, and nothing is asked of the loop, while nobody is in line.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial


class StepLine:
    def __init__(self) -> None:
        self._steps: deque[Callable[[], None]] = deque()

    def call(self, step: Callable[[], None]) -> None:
        """Called in a turn of its own. A step keeps its exceptions to itself."""
        self._steps.append(step)
        if len(self._steps) == 1:
            asyncio.get_running_loop().call_soon(self._run)

    async def turn(self) -> None:
        """Returns when the caller's step is next. Who is cancelled meanwhile costs the others one turn."""
        future = asyncio.get_running_loop().create_future()
        self.call(partial(_wake, future))
        await future

    def _run(self) -> None:
        step = self._steps[0]
        try:
            step()
        finally:
            del self._steps[0]
            if self._steps:
                asyncio.get_running_loop().call_soon(self._run)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
