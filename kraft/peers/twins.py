"""Tells of two processes that fetch as one replica: one runs on a copy of the other's log directory.

A process asks for one thing at a time, and a connection that it gave up is closed, so that its fetch is
forgotten. Once that may come too late; two that live have fetches open side by side again and again, for each
has the other's given up. Both count as one voter, and what one of them holds is taken to be with the other:
a person has to end one. Not here: fetches (service.py). Pure.
"""

from __future__ import annotations

from collections import deque
from typing import Final

TIMES: Final = 3  # within WINDOW_S
WINDOW_S: Final = 60.0
REPLICAS_MAX: Final = 64  # that are watched; those go that were seen first

Replica = tuple[int, bytes]


class Twins:
    def __init__(self) -> None:
        self._open: dict[Replica, int] = {}
        self._seen: dict[Replica, deque[float]] = {}  # when two were open, the last TIMES
        self._told: dict[Replica, float] = {}

    def on_fetch(self, replica: Replica, now_s: float) -> bool:
        """Whether it is to be told now: at most once in WINDOW_S."""
        others = self._open.get(replica, 0)
        self._open[replica] = others + 1
        if not others:
            return False
        if replica not in self._seen and len(self._seen) >= REPLICAS_MAX:
            first = next(iter(self._seen))
            del self._seen[first]
            self._told.pop(first, None)
        seen = self._seen.setdefault(replica, deque(maxlen=TIMES))
        seen.append(now_s)
        is_certain = len(seen) == TIMES and now_s - seen[0] <= WINDOW_S
        if not is_certain or now_s - self._told.get(replica, -WINDOW_S) < WINDOW_S:
            return False
        self._told[replica] = now_s
        return True

    def on_answered(self, replica: Replica) -> None:
        """Or forgotten."""
        self._open[replica] -= 1
        if not self._open[replica]:
            del self._open[replica]
