"""Who was told of something lately, so that a log has one line a name and period, whatever a client repeats.
Pure; bounded: in a period no more than NAMES_MAX names are told of anything."""

from __future__ import annotations

PERIOD_S = 60.0
NAMES_MAX = 1000
NAME_CHARS_MAX = 200


class Told:
    def __init__(self) -> None:
        self._told_s: dict[str, float] = {}  # the first is the oldest

    def is_due(self, name: str, now_s: float) -> bool:
        """Whether the name was not told within the period; then it is, by this. `now_s` is the loop's
        monotonic time."""
        name = name[:NAME_CHARS_MAX]
        told_s = self._told_s
        if now_s - told_s.get(name, float("-inf")) < PERIOD_S:
            return False
        told_s.pop(name, None)
        if len(told_s) >= NAMES_MAX:
            oldest = next(iter(told_s))
            if now_s - told_s[oldest] < PERIOD_S:
                return False
            del told_s[oldest]
        told_s[name] = now_s
        return True
