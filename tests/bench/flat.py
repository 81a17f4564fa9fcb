"""Whether a process's memory stands still: a bound on the highest sample, and the growth of a robust line through all of them.

Pure. Neither looks at a single sample: allocators step, and a garbage collection that is due makes a saw. The line is Theil and Sen's, the
median slope over pairs of samples, which a third of the samples may miss by any amount.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

PAIRS_MAX = 40_000


@dataclass(frozen=True, slots=True)
class Flatness:
    peak_bytes: int
    grown_bytes: float  # by the line, from the first sample to the last
    bound_bytes: int
    growth_bytes_max: int

    @property
    def is_flat(self) -> bool:
        return self.peak_bytes <= self.bound_bytes and self.grown_bytes <= self.growth_bytes_max


def slope(samples: list[tuple[float, int]]) -> float:
    """Bytes a second: the median over pairs that lie at least a third of the whole stretch apart."""
    step = max(1, len(samples) * len(samples) // (2 * PAIRS_MAX))
    apart_s = (samples[-1][0] - samples[0][0]) / 3
    pairs = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for index, earlier in enumerate(samples)
        for later in samples[index + 1 + index % step :: step]
        if later[0] - earlier[0] >= apart_s
    ]
    return statistics.median(pairs)


def judge(samples: list[tuple[float, int]], bound_bytes: int, growth_bytes_max: int) -> Flatness:
    """`samples`: (time in seconds, bytes), in order, warm-up left out; at least a dozen."""
    assert len(samples) >= 12, len(samples)
    grown_bytes = slope(samples) * (samples[-1][0] - samples[0][0])
    return Flatness(max(size for _, size in samples), grown_bytes, bound_bytes, growth_bytes_max)
