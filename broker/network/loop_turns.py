"""Turns of an iteration of the loop: of connections with frames left, and of the tasks of their requests.

A task's first step does what its handler does before it has to wait, in the iteration after the one in which
its connection began it: three hundred connections that each begin one task take next to nothing of the first
iteration, and all of the second. So a task begins while that has time left (loop_share.py), and otherwise
takes its turn among those that stand in line (frame_queue.py). Its later steps are counted, and not held
back: what it waited for may be what others wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable
from functools import partial
from typing import Any, TypeVar

from millrace.broker.network.frame_queue import FrameQueue, Standing
from millrace.broker.network.loop_share import LoopShare

T = TypeVar("T")


class LoopTurns:
    """A server has one."""

    def __init__(self, now_s: Callable[[], float], defer: Callable[[Callable[[], None]], object]) -> None:
        """As LoopShare."""
        self.share = LoopShare(now_s, defer)
        self.queue = FrameQueue(now_s)

    def begin(self, steps: Coroutine[Any, Any, T], address: Hashable) -> Awaitable[T]:
        """What `steps` come to: the first is taken when there is time, each is counted. Cancelled before, it
        never begins."""
        return _InTurns(self, steps, address)


class _InTurns(Awaitable[T]):
    __slots__ = ("_address", "_steps", "_turns")

    def __init__(self, turns: LoopTurns, steps: Coroutine[Any, Any, T], address: Hashable) -> None:
        self._turns = turns
        self._steps = steps
        self._address = address

    def __await__(self) -> Generator[Any, None, T]:
        turns, steps = self._turns, self._steps
        share = turns.share
        if share.is_spent:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            turns.queue.call_soon(turn, partial(_wake, turn), self._address, Standing.TASK)
            try:
                yield from turn
            except BaseException:
                turns.queue.forget(turn)
                steps.close()
                raise
        error: BaseException | None = None
        while True:
            began_s = share.now_s()
            try:
                awaited = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                share.add(share.now_s() - began_s)
            error = None
            try:
                yield awaited
            except BaseException as thrown:
                error = thrown


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # cancelled meanwhile
        turn.set_result(None)
