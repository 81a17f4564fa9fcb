"""What a reader may see of a partition, by isolation level. Pure.

The high watermark is the end of what is durable. Readers of committed records see up to the last stable
offset, which is the high watermark as long as no transaction is open; there are none yet, so no record is
ever aborted either.
"""

from __future__ import annotations

from enum import IntEnum


class Isolation(IntEnum):
    """Kafka's numbers."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


_UNCOMMITTED, _COMMITTED = Isolation  # up to Python 3.11 a class of members is searched each time


def isolation_of(level: int) -> Isolation:
    """What a request's isolation level means: any number but Kafka's 1 reads what is durable."""
    return _COMMITTED if level == 1 else _UNCOMMITTED


def last_stable_offset(high_watermark: int) -> int:
    """The end of what readers of committed records see."""
    return high_watermark
