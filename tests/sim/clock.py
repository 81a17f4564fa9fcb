"""Wall time of a simulated machine: the loop's time from a fixed date on, with an offset, a drift and steps."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.loop import START_US

START_MS = 1_700_000_000_000


class SimClock:
    """`drift_ppm`: microseconds a second that this clock runs too fast."""

    def __init__(self, now_us: Callable[[], int], offset_ms: int = 0, drift_ppm: int = 0) -> None:
        self.offset_ms = offset_ms
        self.drift_ppm = drift_ppm
        self._now_us = now_us

    def wall_ms(self) -> int:
        elapsed_us = self._now_us() - START_US
        return START_MS + self.offset_ms + (elapsed_us + elapsed_us * self.drift_ppm // 1_000_000) // 1000

    def step(self, change_ms: int) -> None:
        """Somebody sets the clock."""
        self.offset_ms += change_ms
