"""Whether the wall clock may be believed where it decides that records are too old. Pure.

The wall clock is compared with the monotonic one each time somebody looks. Steps of up to `JUMP_MAX_MS` between two looks are taken as they come
(a correction, a leap, a short suspension of the machine); a larger one forward is not believed: a clock set to the wrong year would have
retention delete everything at once, for good. It is believed after all when it comes back to where the monotonic clock says it should
be, or when the new time has stood for `ACCEPT_MS` without anybody having set it right. A step backward deletes nothing too early.
"""

from __future__ import annotations

JUMP_MAX_MS = 3_600_000
ACCEPT_MS = 86_400_000


class WallWatch:
    """`offset` is wall minus monotonic time, as far as it is believed."""

    __slots__ = ("_offset_ms", "_suspected_at_ms", "_suspected_offset_ms")

    def __init__(self, wall_ms: int, tick_ms: int) -> None:
        self._offset_ms = wall_ms - tick_ms
        self._suspected_offset_ms = 0
        self._suspected_at_ms: int | None = None

    @property
    def is_suspect(self) -> bool:
        return self._suspected_at_ms is not None

    def look(self, wall_ms: int, tick_ms: int) -> int:
        """How far the wall clock is ahead of what is believed, when that is too far; 0 when it is believed."""
        offset_ms = wall_ms - tick_ms
        ahead_ms = offset_ms - self._offset_ms
        if ahead_ms <= JUMP_MAX_MS or self._is_accepted(offset_ms, tick_ms):
            self._offset_ms = offset_ms
            self._suspected_at_ms = None
            return 0
        return ahead_ms

    def _is_accepted(self, offset_ms: int, tick_ms: int) -> bool:
        """Whether this far jump has stood long enough. Another jump begins the wait anew."""
        if self._suspected_at_ms is None or abs(offset_ms - self._suspected_offset_ms) > JUMP_MAX_MS:
            self._suspected_at_ms = tick_ms
            self._suspected_offset_ms = offset_ms
        return tick_ms - self._suspected_at_ms >= ACCEPT_MS
