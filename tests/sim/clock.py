"""Wall time of a simulated machine: the loop's time from a fixed date on, with an offset, a drift and
steps."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.loop import START_US

START_MS = 1_700_000_000_000


class SimClock:
    """`drift_ppm`: microseconds a second that this clock runs too fast. `stepped_ms`: how far it was ever set
    forward."""

    def __init__(self, now_us: Callable[[], int], offset_ms: int = 0, drift_ppm: int = 0) -> None:
        self.offset_ms = offset_ms
        self.drift_ppm = drift_ppm
        self.stepped_ms = 0
        self._highest_ms = 0  # the latest that it showed when it was set, and when
        self._highest_us = START_US
        self.was_set = False
        self._now_us = now_us
        self._drifts_since_us = START_US

    def wall_ms(self) -> int:
        now_us = self._now_us()
        drift_us = (now_us - self._drifts_since_us) * self.drift_ppm // 1_000_000
        return START_MS + self.offset_ms + (now_us - START_US + drift_us) // 1000

    def highest_ms(self) -> int:
        """The latest that it ever showed, carried on to now: what is known where it is set back."""
        carried_ms = self._highest_ms + (self._now_us() - self._highest_us) // 1000
        return max(self.wall_ms(), carried_ms)

    def asleep_ms(self) -> int:
        return 0

    def elapsed_ms(self) -> int:
        return self._now_us() // 1000

    def step(self, change_ms: int) -> None:
        """Somebody sets the clock."""
        self.was_set = True
        self._highest_ms, self._highest_us = self.highest_ms(), self._now_us()
        self.offset_ms += change_ms
        self.stepped_ms += max(0, change_ms)

    def drift(self, drift_ppm: int) -> None:
        """From now on it runs so much too fast; what it shows now is not changed."""
        shown_ms = self.wall_ms()
        self.drift_ppm, self._drifts_since_us = drift_ppm, self._now_us()
        self.offset_ms += shown_ms - self.wall_ms()
