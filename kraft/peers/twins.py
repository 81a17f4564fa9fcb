"""Tells of two processes that fetch as one replica: one runs on a copy of the other's log directory.

A process has one fetch open at a time, and closes the connection of one that it gives up before it asks
again. So one that another of the replica has overtaken, and whose connection is closed behind that, is of a
process that was there beside the other; or the network has brought the news of its end late, which it does
now and then, and between two that live each gives up again and again what the other has overtaken. Both count
as one voter, and what one of them holds is taken to be with the other: a person has to end one. Not here:
fetches (service.py). Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

TIMES: Final = 10  # within WINDOW_S; two that live give up a fetch every two seconds or three
WINDOW_S: Final = 60.0
OPEN_MAX: Final = 16  # of one replica that are looked at; those go that were opened first
REPLICAS_MAX: Final = 64  # that are watched; those go that were seen first

Replica = tuple[int, bytes]
IsThere = Callable[[], bool]


class _Fetch:
    def __init__(self, is_there: IsThere) -> None:
        self.is_there = is_there
        self.is_overtaken = False


class Twins:
    """Fetches have numbers."""

    def __init__(self) -> None:
        self._open: dict[Replica, dict[int, _Fetch]] = {}
        self._seen: dict[Replica, deque[float]] = {}  # when one that was overtaken was closed, the last TIMES
        self._told: dict[Replica, float] = {}

    def on_fetch(self, replica: Replica, number: int, is_there: IsThere, now_s: float) -> bool:
        """`is_there`: whether the connection of who asks is open. Whether two are to be told of now, at most
        once in WINDOW_S."""
        others = self._open.setdefault(replica, {})
        closed = [before for before, fetch in others.items() if not fetch.is_there()]
        are_two = sum(others.pop(before).is_overtaken for before in closed) > 0
        for fetch in others.values():
            fetch.is_overtaken = True
        if len(others) >= OPEN_MAX:
            del others[next(iter(others))]
        others[number] = _Fetch(is_there)
        return are_two and self._is_told(replica, now_s)

    def on_end(self, replica: Replica, number: int) -> None:
        """It is answered, or given up here."""
        others = self._open.get(replica, {})
        others.pop(number, None)
        if not others:
            self._open.pop(replica, None)

    def _is_told(self, replica: Replica, now_s: float) -> bool:
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
