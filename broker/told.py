"""Who was told of something lately, so that a log has one line a name and period, whatever a client repeats.
Pure; bounded."""

from __future__ import annotations

PERIOD_S = 60.0
NAMES_MAX = 1000  # remembered at once; at the bound all are forgotten


class Told:
    def __init__(self) -> None:
        self._told_s: dict[str, float] = {}

    def is_due(self, name: str, now_s: float) -> bool:
        """Whether the name was not told within the period; then it is, by this. `now_s` is the loop's
        monotonic time."""
        if now_s - self._told_s.get(name, float("-inf")) < PERIOD_S:
            return False
        if len(self._told_s) >= NAMES_MAX:
            self._told_s.clear()
        self._told_s[name] = now_s
        return True
