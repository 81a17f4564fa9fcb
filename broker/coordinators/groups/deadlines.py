"""The deadlines of one group's members, and of the ids that it gave out: which are due, and when the next one
is. Pure.

A deadline that moves away costs nothing here. Its timer stays where it was until that time has come, or
until it is the earliest one; then it moves to where the deadline is by now, or goes with a deadline that is
no more. So an event of a group costs the logarithm of its members, and moves each timer once for each time
that its deadline moved, at most.

Not here: what sets a deadline and what happens at it (group.py), the group's own timer (state_machine.py).
Keeps true: a deadline that runs has a timer that is not later.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.broker.coordinators.groups.members import Member
from millrace.broker.coordinators.runtime.state_machine import NEVER_MS
from millrace.broker.coordinators.runtime.timers import Timers

# Timers that one event moves to where their deadlines are by now. Beyond that it is told a time that is
# early: somebody looks then, and moves as many more.
MOVED_PER_EVENT = 100
DUE_PER_TICK = 1000  # looked at by one tick: the rest by the next one, at once


class Deadlines:
    """Of `members` by their ids, and of `pending`, ids that were given out, with theirs; no id is in both.
    Whoever lets a deadline run, or moves it to an earlier time, calls `set`. Times are milliseconds of one
    clock."""

    __slots__ = ("_members", "_pending", "_timers")

    def __init__(self, members: Mapping[str, Member], pending: Mapping[str, int]) -> None:
        self._members = members
        self._pending = pending
        self._timers: Timers | None = None  # made for the first deadline: most groups have offsets alone

    def __len__(self) -> int:
        """Ids that have a timer: no fewer than those whose deadline runs."""
        return 0 if self._timers is None else len(self._timers)

    def set(self, key: str, due_ms: int) -> None:
        """The id's deadline is `due_ms` now, or later."""
        if self._timers is None:
            self._timers = Timers()
        self._timers.set(key, due_ms)

    def forget(self, key: str) -> None:
        """The id has gone."""
        if self._timers is not None:
            self._timers.forget(key)

    def next_ms(self) -> int:
        """The earliest deadline, NEVER_MS if none runs; or an earlier time, where MOVED_PER_EVENT timers had
        to be moved and that was not all of them."""
        timers = self._timers
        if timers is None:
            return NEVER_MS
        for _ in range(MOVED_PER_EVENT):
            first = timers.first()
            if first is None:
                return NEVER_MS
            due_ms, key = first
            actual_ms = self._deadline_of(key)
            if actual_ms == due_ms:
                return due_ms
            _place(timers, key, actual_ms)
        next_ms = timers.next_due_ms()
        return NEVER_MS if next_ms is None else next_ms

    def take_due(self, now_ms: int) -> list[str]:
        """Ids whose deadline has come, the earliest timer first; they have no timer afterwards. Those of
        DUE_PER_TICK timers at most: `next_ms` is not behind `now_ms` while there may be more."""
        due: list[str] = []
        timers = self._timers
        if timers is None:
            return due
        for key in timers.take_due(now_ms, DUE_PER_TICK):
            deadline_ms = self._deadline_of(key)
            if deadline_ms <= now_ms:
                due.append(key)
            else:
                _place(timers, key, deadline_ms)
        return due

    def has_due(self, now_ms: int) -> bool:
        """Whether a timer is due still, which take_due had no time for."""
        next_ms = None if self._timers is None else self._timers.next_due_ms()
        return next_ms is not None and next_ms <= now_ms

    def _deadline_of(self, key: str) -> int:
        """NEVER_MS for a member whose session timer is paused, and where there is neither member nor id."""
        member = self._members.get(key)
        if member is None:
            return self._pending.get(key, NEVER_MS)
        return member.deadline_ms if member.has_session_timer else NEVER_MS


def _place(timers: Timers, key: str, deadline_ms: int) -> None:
    if deadline_ms >= NEVER_MS:
        timers.forget(key)
    else:
        timers.move(key, deadline_ms)
