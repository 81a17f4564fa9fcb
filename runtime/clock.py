"""Wall time in milliseconds. Timers are the event loop's own (`loop.time`, `call_later`), never this.

A wall clock may jump; only record timestamps, retention and expiry that clients see are judged by it, and
what is deleted by it only as far as broker/identity/known_time.py lets it.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

ELAPSED_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def asleep_ms(self) -> int:
        """For how long the machine was suspended until now, counted from any moment: monotonic timers stand
        still meanwhile. Never falls."""
        ...

    def elapsed_ms(self) -> int:
        """Since any moment, a suspension of the machine counted in. Read anew by each call, where a loop may
        tell the time at which its iteration began: who was halted within an iteration sees it. Never
        falls."""
        ...


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def asleep_ms(self) -> int:
        """0 where the system does not tell."""
        boot = getattr(time, "CLOCK_BOOTTIME", None)
        if boot is None:
            return 0
        asleep_ns = time.clock_gettime_ns(boot) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return max(0, asleep_ns) // 1_000_000

    def elapsed_ms(self) -> int:
        """Without suspensions where the system does not tell them."""
        return time.clock_gettime_ns(ELAPSED_CLOCK) // 1_000_000
