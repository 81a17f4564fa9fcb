"""Connections that have frames left when their turn has ended: whose is the next.

One of them goes on in an iteration of the loop. Those whose last turn was short take turns with those whose
turns are long, and in each of both classes addresses take turns: two thousand connections of one address that
ask for what takes milliseconds wait for each other, and one of another address waits for one of them. A new
connection had no long turn yet. Not here: how long a turn may be (loop_share.py).

Kept true: a connection stands in it once, those of an address in their order, and each is called once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

from millrace.runtime.scheduling.yield_queue import YieldQueue

Line = OrderedDict[Hashable, deque[Callable[[], None]]]
"""Those of one class, by address; whose turn is next first."""


class FrameQueue:
    """A server has one."""

    def __init__(self) -> None:
        self._queue = YieldQueue()
        self._lines: tuple[Line, Line] = OrderedDict(), OrderedDict()  # of long turns, and of short ones
        self._is_turn_of_short = True

    def call_soon(self, callback: Callable[[], None], address: Hashable, *, is_short: bool) -> None:
        """Called once, in its turn, in an iteration of the loop that no other of this queue has."""
        self._lines[is_short].setdefault(address, deque()).append(callback)
        self._queue.call_soon(self._run)

    def _run(self) -> None:
        is_short = self._is_turn_of_short
        if not self._lines[is_short]:
            is_short = not is_short
        self._is_turn_of_short = not is_short
        line = self._lines[is_short]
        address, waiting = next(iter(line.items()))
        callback = waiting.popleft()
        if waiting:
            line.move_to_end(address)
        else:
            del line[address]
        callback()
