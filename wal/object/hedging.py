"""When an object of the log is put a second time at once, so that one slow answer does not hold up all that
stands behind it. Pure; in milliseconds.

    put --early, when somebody waits behind it; late, when nobody does--> put again --either answers--> done

Acknowledgements come in order, so each waits for the slowest of the puts before it. The store's slowness is
chance more often than load: of two puts of the same bytes the better one is seldom slow. Eager hedging, for a
log that favours latency, sends the second put almost at once, and batches begin half an upload apart. Sparing
hedging, for a log with a batch interval, sends it when a put takes twice as long as usual: one in eight,
which cuts the slowest hundredth. By simulation over puts of 60 ms, 250 ms at 99 of 100, in parts of that
median and that 99th percentile, with puts a second:

    batches begun every 25 ms, put again after  5 ms   1.08 and 0.63   80
                        50 ms                   5 ms   1.23 and 0.67   40
                       100 ms                 120 ms   1.95 and 1.04   11
                       250 ms                 120 ms   3.25 and 1.54    4.5
                       100 ms, never                   1.97 and 1.29   10

What uploads take is measured from the first put to the first answer, hedged or not: that is known of each,
while what the loser would have taken is not; it lies between 0.7 and 1 of the put's own median.

Bounds: one duplicate an upload; so many bytes of duplicates under way; none for a while after the store
refused anything; none below some milliseconds; and where they do not win (a store that is slow by load, or
always equally) only a probe now and then. Not here: what makes two puts of one slot harmless (fence.py), who
sends them (writer.py).
"""

from __future__ import annotations

from collections import deque
from statistics import median

SAMPLES_MAX = 64
SAMPLES_MIN = 8
EAGER_PART = 1 / 10
SPARING_PART = 2.0
LATE_PART = 2.5
# Of what an eagerly hedged upload takes, which is 0.7 of a put.
GATHER_PART = 0.6
# Below this a duplicate costs more than it can save.
EARLY_MS_MIN = 5.0
# Two full batches with their headers: with less a log of some 40 MB/s, whose interval gathers half a batch,
# would wait for each slow put again.
DUPLICATES_BYTES_MAX = (16 << 20) + 4096
QUIET_MS = 5_000.0
# Of so many duplicates one in ten must have won; else one in sixteen is sent, to see whether that has
# changed.
OUTCOMES_MAX = 64
WON_PART_MIN = 0.1
PROBE_EVERY = 16


class Hedging:
    def __init__(self, *, is_on: bool, is_eager: bool = True) -> None:
        self._is_on = is_on
        self._is_eager = is_eager
        self._samples: deque[float] = deque(maxlen=SAMPLES_MAX)
        self._outcomes: deque[bool] = deque(maxlen=OUTCOMES_MAX)
        self._typical_ms: float | None = None
        self._refused_at_ms = float("-inf")
        self._skipped = 0
        self.under_way_bytes = 0
        self.begun = 0
        self.won = 0
        self.begun_bytes = 0

    def __repr__(self) -> str:
        return f"hedging of {self._typical_ms} ms, {self.won} of {self.begun} won"

    @property
    def early_ms(self) -> float | None:
        """So long after its begin an upload that others wait for is late; None: never."""
        if not self._is_on or self._typical_ms is None:
            return None
        return max(EARLY_MS_MIN, (EAGER_PART if self._is_eager else SPARING_PART) * self._typical_ms)

    @property
    def late_ms(self) -> float:
        """The same where nobody waits; asked when `early_ms` has passed."""
        assert self._typical_ms is not None, "early_ms is None"
        return max(EARLY_MS_MIN, LATE_PART * self._typical_ms)

    def gather_ms(self, batch_bytes: int, now_ms: float) -> float | None:
        """How far apart uploads begin that will be put twice; None when such a batch will not be."""
        if not self._is_on or not self._is_eager or self._typical_ms is None or not self._is_paying:
            return None
        if batch_bytes > DUPLICATES_BYTES_MAX or self._is_pausing(now_ms):
            return None
        return GATHER_PART * self._typical_ms

    def on_uploaded(self, elapsed_ms: float) -> None:
        """An upload had its first answer, and no refusal before it."""
        self._samples.append(elapsed_ms)
        if len(self._samples) >= SAMPLES_MIN:
            self._typical_ms = median(self._samples)

    def on_refused(self, now_ms: float) -> None:
        """The store refused, or was silent for too long."""
        self._refused_at_ms = now_ms

    def begin(self, size_bytes: int, now_ms: float) -> bool:
        """Whether a duplicate goes out now; then `end` follows."""
        if (
            not self._is_on
            or self._is_pausing(now_ms)
            or self.under_way_bytes + size_bytes > DUPLICATES_BYTES_MAX
        ):
            return False
        if not self._is_paying:
            self._skipped += 1
            if self._skipped % PROBE_EVERY:
                return False
        self.under_way_bytes += size_bytes
        self.begun_bytes += size_bytes
        self.begun += 1
        return True

    def end(self, size_bytes: int, *, has_won: bool | None) -> None:
        """None: neither answered."""
        self.under_way_bytes -= size_bytes
        if has_won is not None:
            self.won += has_won
            self._outcomes.append(has_won)

    @property
    def _is_paying(self) -> bool:
        return len(self._outcomes) < OUTCOMES_MAX or sum(self._outcomes) >= WON_PART_MIN * OUTCOMES_MAX

    def _is_pausing(self, now_ms: float) -> bool:
        return now_ms - self._refused_at_ms < QUIET_MS
