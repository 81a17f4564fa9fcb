"""How many writes are worth having under way, and how many a device gives a second. Pure: time is handed in.
Hot.

`Depth` climbs a hill: while the log is busy it looks at the bytes a second of a stretch of writes, tries one
write more, and keeps it only if that carried more; now and then it tries one fewer, and keeps that if it
carried as much. So a disk that works on one write at a time is not given four, which would only wait in its
queue and make blocks smaller, and a device that works in parallel is.

`IopsLimit` is a bucket of tokens for volumes that are sold by operations: whoever comes after its last token
is told how long to wait. It is the only reason for a timer on the append path.
"""

from __future__ import annotations

STRETCH_WRITES = 48
GAIN_MIN = 1.05  # one more write under way has to carry this much more
LOSS_MAX = 0.98  # one fewer may carry this much less
HOLD_MIN, HOLD_MAX = 8, 128  # stretches between two tries that changed nothing
IO_BYTES = 256 << 10  # what cloud volumes count as one operation at most
BURST_S = 0.1


class Depth:
    """`value` is how many writes may be under way now, 1 to `most`."""

    __slots__ = (
        "_before",
        "_bytes",
        "_hold",
        "_holds",
        "_is_up_next",
        "_since_s",
        "_step",
        "_writes",
        "most",
        "value",
    )

    def __init__(self, most: int, at_first: int) -> None:
        self.most = most
        self.value = min(at_first, most)
        self._hold = HOLD_MIN  # the next pause between tries, in stretches
        self._holds = 1  # stretches until the next try
        self._step = 0  # what is being tried: 1 one more, -1 one fewer, 0 nothing
        self._is_up_next = True
        self._before = 0.0  # bytes a second before the try
        self._begin(0.0, False)

    def _begin(self, now_s: float, is_running: bool) -> None:
        self._writes = 0 if is_running else -1
        self._bytes = 0
        self._since_s = now_s

    def on_written(self, writes: int, size_bytes: int, under_way: int, now_s: float) -> None:
        """Writes are done; `under_way` counts them. A stretch in which the log was not busy tells nothing and
        begins anew."""
        if under_way < self.value:
            self._begin(now_s, False)
            return
        if self._writes < 0:
            self._begin(now_s, True)
            return
        self._writes += writes
        self._bytes += size_bytes
        if self._writes >= STRETCH_WRITES and now_s > self._since_s:
            rate = self._bytes / (now_s - self._since_s)
            self._judge(rate)
            self._begin(now_s, True)

    def _judge(self, rate: float) -> None:
        if self._step:
            bound = GAIN_MIN if self._step > 0 else LOSS_MAX
            if rate >= self._before * bound:
                self._hold = HOLD_MIN
                self._try(rate, self._step)  # it helped: once more in the same direction
                return
            self.value -= self._step
            self._is_up_next = self._step < 0
            self._step = 0
            self._holds = self._hold
            self._hold = min(2 * self._hold, HOLD_MAX)
            return
        self._holds -= 1
        if self._holds <= 0:
            self._try(rate, 1 if self._is_up_next else -1)

    def _try(self, rate: float, step: int) -> None:
        wanted = min(max(self.value + step, 1), self.most)
        self._before = rate
        self._step = wanted - self.value
        if not self._step:
            self._is_up_next = step < 0
            self._holds = self._hold
        self.value = wanted


class IopsLimit:
    """`rate` operations a second, 0 for no limit. A large write counts as the operations that a volume makes
    of it."""

    __slots__ = ("_burst", "_left", "_then_s", "rate")

    def __init__(self, rate: int, now_s: float) -> None:
        self.rate = rate
        self._burst = max(1.0, rate * BURST_S)
        self._left = self._burst
        self._then_s = now_s

    def wait_s(self, now_s: float) -> float:
        """How long until the next write may begin; 0 for now."""
        if not self.rate:
            return 0.0
        self._left = min(self._burst, self._left + (now_s - self._then_s) * self.rate)
        self._then_s = now_s
        return 0.0 if self._left > 0 else (1e-9 - self._left) / self.rate

    def spend(self, size_bytes: int) -> None:
        """A write begins. What cannot wait, a header or zeros, spends as well, and the next block waits the
        longer."""
        self._left -= -(-size_bytes // IO_BYTES)
