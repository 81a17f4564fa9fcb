"""Wall time in milliseconds. Timers are the event loop's own (`loop.time`, `call_later`), never this.

A wall clock may jump; only record timestamps, retention and expiry that clients see are judged by it.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
