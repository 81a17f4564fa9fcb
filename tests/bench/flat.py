"""Whether a process's memory stands still: a bound on the highest sample, the growth of a robust line through
all of them, and steady growth.

Pure. None looks at a single sample: allocators step, and a garbage collection that is due makes a saw. The
line is Theil and Sen's, the median slope over pairs of samples, which a third of the samples may miss by any
amount; one step in the middle is in it whole. Steady growth is the median over pairs near each other, which a
few steps do not touch and a slow leak does: it is in all of them.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

PAIRS_MAX = 400_000
NEAR = (1 / 8, 1 / 4)


@dataclass(frozen=True, slots=True)
class Bounds:
    peak_bytes: int
    grown_bytes: float
    steady_bytes: float


@dataclass(frozen=True, slots=True)
class Flatness:
    peak_bytes: int
    grown_bytes: float  # by the line, from the first sample to the last
    steady_bytes: float  # as much, by what most stretches have in common
    bounds: Bounds

    @property
    def is_low(self) -> bool:
        return self.peak_bytes <= self.bounds.peak_bytes

    @property
    def is_level(self) -> bool:
        return self.grown_bytes <= self.bounds.grown_bytes

    @property
    def is_steady(self) -> bool:
        return self.steady_bytes <= self.bounds.steady_bytes

    @property
    def is_flat(self) -> bool:
        return self.is_low and self.is_level and self.is_steady


def slope(samples: list[tuple[float, int]], apart: tuple[float, float] = (1 / 3, 1)) -> float:
    """Bytes a second: the median over pairs that lie such parts of the whole stretch apart."""
    step = max(1, len(samples) * len(samples) // (2 * PAIRS_MAX))
    whole_s = samples[-1][0] - samples[0][0]
    least_s, most_s = (part * whole_s for part in apart)
    pairs = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for index, earlier in enumerate(samples)
        for later in samples[index + 1 + index % step :: step]
        if least_s <= later[0] - earlier[0] <= most_s
    ]
    return statistics.median(pairs)


def judge(samples: list[tuple[float, int]], bounds: Bounds) -> Flatness:
    """`samples`: (time in seconds, bytes), in order, warm-up left out; at least a dozen."""
    assert len(samples) >= 12, len(samples)
    whole_s = samples[-1][0] - samples[0][0]
    grown, steady = slope(samples) * whole_s, slope(samples, NEAR) * whole_s
    return Flatness(max(size for _, size in samples), grown, steady, bounds)
