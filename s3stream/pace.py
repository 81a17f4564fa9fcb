"""How fast objects are put while the store asks for less: lowered when it refuses, raised again while it does
not. Pure; time in microseconds.

    no limit --refused--> half of what went through lately
        --refused again, a second later--> half again ... PACE_MIN
             <--above twice where it began--  a quarter more each second, once HOLD_S have passed without a
                                              refusal

What went through lately is the best second of the last PEAK_S: a burst is forgotten after that, so that a
later limit begins from what is true then. Every answer that leaves an attempt without effect counts as a
refusal: SlowDown, 5xx, time-outs. A hundred refusals within a second are one. Not here: who waits, and in
which order (limiter.py, of which this sets the rate).
"""

from __future__ import annotations

from collections import deque

PACE_MIN = 1 << 20
# Where the first limit begins when nothing went through lately.
PACE_FIRST = 32 << 20
RISE_PER_S = 1.25
HOLD_S = 2.0
CUT_EVERY_S = 1.0
PEAK_S = 60
_US = 1_000_000


class WritePace:
    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()  # the second, bytes that went through in it
        self._limit = 0.0  # as of the last cut; 0: none
        self._began = 0.0  # the rate at which the first cut was made
        self._cut_at_us = 0
        self.cuts = 0

    def __repr__(self) -> str:
        return (
            f"pace {int(self._limit)}B/s cut at {self._cut_at_us}" if self._limit else "pace without a limit"
        )

    def on_written(self, size_bytes: int, now_us: int) -> None:
        second = now_us // _US
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + size_bytes)
        else:
            self._seconds.append((second, size_bytes))
            self._forget(second)

    def on_refused(self, now_us: int) -> None:
        limit = self.limit(now_us)
        if limit is not None and now_us - self._cut_at_us < CUT_EVERY_S * _US:
            return
        peak = self.peak(now_us)
        if limit is None:
            self._began = max(peak, PACE_FIRST)
        before = min(limit or self._began, peak or self._began)
        self._limit = max(PACE_MIN, before / 2)
        self._cut_at_us = now_us
        self.cuts += 1

    def limit(self, now_us: int) -> int | None:
        """Bytes a second, or None for as fast as it goes."""
        if not self._limit:
            return None
        quiet_s = max(0.0, (now_us - self._cut_at_us) / _US - HOLD_S)
        # The exponent is bounded: by then the limit is long gone.
        limit = self._limit * RISE_PER_S ** min(quiet_s, 100.0)
        if limit >= 2 * self._began:
            self._limit = 0.0
            return None
        return int(limit)

    def peak(self, now_us: int) -> int:
        """The best second lately, in bytes."""
        self._forget(now_us // _US)
        return max((size_bytes for _, size_bytes in self._seconds), default=0)

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - PEAK_S:
            self._seconds.popleft()
