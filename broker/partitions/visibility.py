"""What a reader may see of a partition, by isolation level. Pure.

The high watermark is the end of what is durable. Readers of committed records see up to the last stable offset, which is the high
watermark as long as no transaction is open; there are none yet, so no record is ever aborted either.
"""

from __future__ import annotations

from enum import IntEnum


class Isolation(IntEnum):
    """Kafka's numbers."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


def last_stable_offset(high_watermark: int) -> int:
    """The end of what readers of committed records see."""
    return high_watermark
