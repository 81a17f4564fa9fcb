"""How much of everything one run of bench.py does: FULL for figures, SHORT to see in the suite that every
part runs."""

from __future__ import annotations

from dataclasses import dataclass

STRETCH_S_MIN = 0.25


@dataclass(frozen=True, slots=True)
class Extent:
    pace: float = 1.0  # what every stretch of time is multiplied by
    starts: int = 5
    rounds: int = 5
    kills: int = 3
    # Before batches of 64 KiB are counted: the WAL's first lap, which writes zeros ahead, and memory that is
    # new.
    warm_bytes: int = 9 << 28
    filled_bytes: int = 200_000_000
    device_bytes: int = 256 << 20
    topics: int = 10
    topic_partitions: int = 1000
    wal: str = ""

    def stretch(self, seconds: float) -> float:
        return max(seconds * self.pace, min(seconds, STRETCH_S_MIN))


FULL = Extent()
SHORT = Extent(0.05, 1, 1, 1, 0, 4_000_000, 16 << 20, 2, 20, "128MiB")
