"""What an object WAL asks of its store, and what that is a month: by its settings and what comes. Pure.

    uploads a second   none without records; with an interval one each, fewer where records are; never fewer
                       than full batches
    puts an upload     1; of those that are late (hedging.py) another one

An estimate of steady sends, held against measured requests in tests/wal/object/test_cost.py. Not here:
uploads of data, which go by age and size whatever the log is, and marks for trims, one in some seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from millrace.protocol.dataclass import dataclass
from millrace.wal.config import ObjectWalSettings
from millrace.wal.object.batcher import GATHER_MS, LONGEST_MS
from millrace.wal.object.hedging import DUPLICATES_BYTES_MAX, GATHER_PART

MONTH_S = 30 * 86_400
# S3 Standard's first tier at list price.
DOLLARS_A_PUT = 0.005 / 1000
# Of puts as they are in a region: the part that takes twice as long as usual, and how long the better one of
# two takes.
LATE_SHARE = 0.13
BETTER_OF_TWO = 0.75


@dataclass(frozen=True, slots=True)
class Stream:
    """What comes, in steady sends."""

    name: str
    records_a_second: float
    bytes_a_second: float


STREAMS = (
    Stream("idle", 0, 0),
    Stream("a trickle, 120 records/s", 120, 120_000),
    Stream("busy, 10 MB/s", 10_000, 10_000_000),
    Stream("very busy, 100 MB/s", 100_000, 100_000_000),
)


@dataclass(frozen=True, slots=True)
class Cost:
    stream: str
    puts_a_second: float

    @property
    def dollars_a_month(self) -> float:
        return self.puts_a_second * MONTH_S * DOLLARS_A_PUT


def monthly_costs(
    settings: ObjectWalSettings, put_ms: float, streams: Sequence[Stream] = STREAMS
) -> list[Cost]:
    """`put_ms`: what a put takes at the median."""
    return [Cost(stream.name, puts_a_second(settings, put_ms, stream)) for stream in streams]


def puts_a_second(settings: ObjectWalSettings, put_ms: float, stream: Stream) -> float:
    is_hedged = settings.hedge != "off"
    step_ms = settings.interval_ms or _latency_step_ms(put_ms, is_hedged=is_hedged)
    uploads = min(1000 / step_ms, stream.records_a_second)
    uploads = max(uploads, stream.bytes_a_second / settings.batch_bytes_max)
    if not uploads:
        return 0.0
    if not is_hedged or stream.bytes_a_second / uploads > DUPLICATES_BYTES_MAX:
        return uploads
    is_eager = not settings.interval_ms and uploads * put_ms >= 1000  # one waits behind another
    return uploads * (2 if is_eager else 1 + LATE_SHARE)


def _latency_step_ms(put_ms: float, *, is_hedged: bool) -> float:
    """How far apart uploads begin where latency comes first."""
    step_ms = GATHER_PART * BETTER_OF_TWO * put_ms if is_hedged else sqrt(GATHER_MS * put_ms)
    return min(LONGEST_MS, max(GATHER_MS, step_ms))
