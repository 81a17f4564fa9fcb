"""Whether the wall clock may be believed where it decides that something is too old. Pure.

The newest time that is known is carried on by the monotonic clock. A wall clock that shows more than that is
believed up to a slack, and raises what is known; one that shows still more is not: a clock set to the wrong
year would have retention delete everything at once, for good. Waiting changes nothing about that. What does
is a store's own clock that agrees, an operator's word, or the wall clock when it comes back.

    known   <= true time, as long as everything that it was learnt from was right
    judged  = min(wall, known): by it deletions go, so nothing is deleted early
    stamped = wall, or known where the wall clock is far behind it: by it records are stamped and age

The slack is `JUMP_MAX_MS` while the process runs (a correction, a leap, a pause of a virtual machine). At a
start it is as long as a node may have been off unnoticed, until the first time that is read ahead of what was
known; or `JUMP_MAX_MS` where a store's clock tells for how long it was off.

Not here: where times are read and kept (known_time.py).
"""

from __future__ import annotations

JUMP_MAX_MS = 3_600_000


class WallWatch:
    """`known_ms` None: nothing is known before the first look. `tick_ms` is monotonic, in all calls."""

    __slots__ = ("_known_ms", "_known_tick_ms", "_slack_ms")

    def __init__(self, known_ms: int | None, tick_ms: int, slack_ms: int = JUMP_MAX_MS) -> None:
        self._known_ms = known_ms
        self._known_tick_ms = tick_ms
        self._slack_ms = slack_ms

    def known_ms(self, wall_ms: int, tick_ms: int) -> int:
        """The newest known time, carried on to now; the wall's where nothing was known."""
        if self._known_ms is None:
            self._set(wall_ms, tick_ms)
            return wall_ms
        return self._known_ms + tick_ms - self._known_tick_ms

    def look(self, wall_ms: int, tick_ms: int) -> int:
        """How far the wall clock is ahead of what is known, when that is too far; 0 when it is believed."""
        ahead_ms = wall_ms - self.known_ms(wall_ms, tick_ms)
        if ahead_ms > self._slack_ms:
            return ahead_ms
        if ahead_ms >= 0:
            self._set(wall_ms, tick_ms)
        return 0

    def judged_ms(self, wall_ms: int, tick_ms: int) -> int:
        """The time by which something may be found too old."""
        return min(wall_ms, self.known_ms(wall_ms, tick_ms)) if self.look(wall_ms, tick_ms) else wall_ms

    def stamped_ms(self, wall_ms: int, tick_ms: int) -> int:
        """The time that what is written now gets. Never what a clock says that is known to be behind: once it
        is set right, records of that time would look older than they are."""
        known_ms = self.known_ms(wall_ms, tick_ms)
        return known_ms if known_ms - wall_ms > JUMP_MAX_MS else wall_ms

    def on_store_date(self, date_ms: int, wall_ms: int, tick_ms: int) -> None:
        """A store's clock, now. Where it agrees with the wall clock both are right, whatever was known. Alone
        it raises what is known, and never lowers it: it may be the one that is behind."""
        if abs(wall_ms - date_ms) <= JUMP_MAX_MS:
            self._set(wall_ms, tick_ms)
        elif self._known_ms is None or date_ms > self.known_ms(wall_ms, tick_ms):
            self._set(date_ms, tick_ms)
        self._slack_ms = JUMP_MAX_MS

    def learn(self, known_ms: int, wall_ms: int, tick_ms: int) -> None:
        """A time that was, by others' clocks."""
        if known_ms > self.known_ms(wall_ms, tick_ms):
            self._set(known_ms, tick_ms)

    def confirm(self, known_ms: int, tick_ms: int, slack_ms: int = JUMP_MAX_MS) -> None:
        """An operator says that this time was: it is what is known, be it later or earlier than what was."""
        self._set(known_ms, tick_ms)
        self._slack_ms = slack_ms

    def _set(self, known_ms: int, tick_ms: int) -> None:
        self._known_ms, self._known_tick_ms = known_ms, tick_ms
        self._slack_ms = JUMP_MAX_MS
