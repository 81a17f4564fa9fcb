"""Connections that have frames left when their turn has ended, and tasks that wait for theirs: whose is next.

An iteration of the loop gives the line to one that may take long, or to as many others as begin within
LINE_S. Those whose last turn was short take turns with those whose turns are long, with new connections,
which had none, and with tasks; and in each of these classes addresses take turns: two thousand connections of
one address that ask for what takes milliseconds wait for each other, and one of another address waits for one
of them. A task goes on in the iteration after its call, so that nothing is called beside it. Not here: how
long a turn may be (loop_share.py), who goes on outside the line (connection.py).

Kept true: who stands in it stands there once, those of an address in their order, and each is called once, or
leaves before and costs nobody a turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import Final

from millrace.runtime.scheduling.yield_queue import YieldQueue

LINE_S: Final = 0.01

Line = OrderedDict[Hashable, OrderedDict[Hashable, Callable[[], None]]]
"""Those of one class, by address; whose turn is next first."""


class Standing(IntEnum):
    """What is known of who waits: each is a class."""

    LONG = 0  # one an iteration
    NEW = 1
    SHORT = 2
    TASK = 3  # one an iteration


class FrameQueue:
    """A server has one. `now_s` goes on within a step of the loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._queue = YieldQueue()
        self._lines: tuple[Line, ...] = tuple(OrderedDict() for _ in Standing)
        self._places: dict[Hashable, tuple[Standing, Hashable]] = {}
        self._last = Standing.LONG  # whose turn it was
        self._is_scheduled = False

    @property
    def is_empty(self) -> bool:
        return not self._places

    def call_soon(
        self, who: Hashable, callback: Callable[[], None], address: Hashable, standing: Standing
    ) -> None:
        """Called once, in its turn, unless it leaves before."""
        assert who not in self._places, who
        self._places[who] = standing, address
        self._lines[standing].setdefault(address, OrderedDict())[who] = callback
        self._schedule()

    def forget(self, who: Hashable) -> None:
        """Leaves the line, if in it."""
        if who in self._places:
            standing, address = self._places.pop(who)
            line = self._lines[standing]
            del line[address][who]
            if not line[address]:
                del line[address]

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._queue.call_soon(self._run)

    def _run(self) -> None:
        """One class's turn."""
        self._is_scheduled = False
        if not self._places:
            return
        standing = self._last
        while not self._lines[standing := Standing((standing - 1) % len(Standing))]:
            pass
        self._last = standing
        began_s = self._now_s()
        is_one = standing in (Standing.LONG, Standing.TASK)
        while self._lines[standing]:
            callback = self._pop(standing)
            if self._places:
                self._schedule()
            callback()
            # where nothing is timed, one is enough
            if is_one or not 0 < self._now_s() - began_s < LINE_S:
                return

    def _pop(self, standing: Standing) -> Callable[[], None]:
        line = self._lines[standing]
        address, waiting = next(iter(line.items()))
        who, callback = waiting.popitem(last=False)
        del self._places[who]
        if waiting:
            line.move_to_end(address)
        else:
            del line[address]
        return callback
