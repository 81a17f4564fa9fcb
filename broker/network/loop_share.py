"""How much connections may begin in one iteration of the loop.

A frame's size says little of its work: 16 KB of a Fetch are half a millisecond or two. So a connection's turn
ends when it has taken TURN_S. One whose turn ended so goes on in a line (frame_queue.py), until a turn of it
is shorter again. The others are served as soon as they are read from, those whose last turn was not brief
while nobody stands in that line, until all have taken ITERATION_S: then only frames up to SMALL_TURN_BYTES,
of those whose last turn was brief, in a turn that is to be brief again. Those that are not may take LATE_S
together, behind which nobody is let in. A thousand connections that each ask for a millisecond's work at once
would take a second of one iteration otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

TURN_S: Final = 0.004
BRIEF_TURN_S: Final = 0.0002  # shorter turns of connections are not added up
ITERATION_S: Final = 0.02
LATE_S: Final = 0.01  # of late turns that were to be brief, and are not
SMALL_TURN_BYTES: Final = 4 << 10


class LoopShare:
    """A server has one. `now_s` goes on within a step of the loop; `defer` runs a call in the next iteration.
    `spent_s`: what was taken of this one."""

    __slots__ = ("_defer", "now_s", "spent_s")

    def __init__(self, now_s: Callable[[], float], defer: Callable[[Callable[[], None]], object]) -> None:
        self.now_s = now_s
        self._defer = defer
        self.spent_s = 0.0

    @property
    def is_spent(self) -> bool:
        """This iteration of the loop has had all that it may have."""
        return self.spent_s >= ITERATION_S

    @property
    def may_begin_late(self) -> bool:
        """Who was brief may still begin what is small."""
        return self.spent_s < ITERATION_S + LATE_S

    def add(self, took_s: float) -> None:
        """So much was taken."""
        if not self.spent_s:
            self._defer(self._begin)
        self.spent_s += took_s

    def _begin(self) -> None:
        self.spent_s = 0.0
