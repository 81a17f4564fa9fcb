"""How much connections may begin in one iteration of the loop.

A frame's size says little of its work: 16 KB of a Fetch are half a millisecond or two. So a connection's turn
ends when it has taken TURN_S. One whose turn ended so goes on in a line with all such (frame_queue.py), one
of them an iteration, until a turn of it is shorter again; the others are served as soon as they are read
from, until all have taken ITERATION_S: then only frames up to SMALL_TURN_BYTES, of those whose turns were
short.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

TURN_S: Final = 0.004
NOTED_S: Final = 0.0005  # shorter turns are not added up
ITERATION_S: Final = 0.02
SMALL_TURN_BYTES: Final = 4 << 10


class LoopShare:
    """A server has one. `now_s` goes on within a step of the loop; `defer` runs a call in the next."""

    def __init__(self, now_s: Callable[[], float], defer: Callable[[Callable[[], None]], object]) -> None:
        self.now_s = now_s
        self._defer = defer
        self._spent_s = 0.0

    @property
    def is_spent(self) -> bool:
        """This iteration of the loop has had all that it may have."""
        return self._spent_s >= ITERATION_S

    def note(self, took_s: float) -> bool:
        """A turn has ended; whether it took as long as one may."""
        if took_s < NOTED_S:
            return False
        if not self._spent_s:
            self._defer(self._begin)
        self._spent_s += took_s
        return took_s >= TURN_S

    def _begin(self) -> None:
        self._spent_s = 0.0
