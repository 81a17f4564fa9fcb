"""Segments: a partition's data stream cut into slices, the unit of retention and of the time index. Pure.

A segment is not a file: it is a range of offsets, and what must be known of it to decide when the next begins
(`is_full`), what retention may drop (`plan_retention`) and where to look for a time (`find_time`). The last
one is open and grows.

Not here: the records, the index entries (time_index.py), and storing (each segment is one value of the meta
stream).

Invariants
  * Segments follow each other without a gap; the first covers the log's start, the last ends at the log's
    end.
  * A segment spans less than 2^31 offsets, so that a delta fits the time index and Kafka's own relative
    offsets.
  * `SEGMENTS_MAX` bounds them: over it a segment only ends where its span must, so that retention grows
    coarse, not memory large.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise

from millrace.protocol.dataclass import dataclass
from millrace.runtime.errors import Corrupt

SEGMENTS_MAX = 20_000
SPAN_MAX = 2**31 - 1
NO_TIMESTAMP = -1

_VERSION = 1
_SEGMENT = struct.Struct(">BxxxIqqqqqqqq")


@dataclass(slots=True)
class Segment:
    """Offsets [base_offset, end_offset). `time_start`/`time_end`: its slice of the time stream, in that
    stream's offsets.

    `first_timestamp_ms` is the largest of the first batch (Kafka rolls by it); where records have no
    timestamps, the wall times of the segment's first and last append stand in.
    """

    base_offset: int
    end_offset: int
    size_bytes: int = 0
    first_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_ms: int = NO_TIMESTAMP
    created_ms: int = 0
    appended_ms: int = 0
    time_start: int = 0
    time_end: int = 0

    @property
    def latest_ms(self) -> int:
        """What retention by time goes by."""
        return self.max_timestamp_ms if self.max_timestamp_ms >= 0 else self.appended_ms

    def encode(self) -> bytes:
        return _SEGMENT.pack(
            _VERSION,
            self.end_offset - self.base_offset,
            self.base_offset,
            self.size_bytes,
            self.first_timestamp_ms,
            self.max_timestamp_ms,
            self.created_ms,
            self.appended_ms,
            self.time_start,
            self.time_end,
        )

    @staticmethod
    def decode(data: bytes | memoryview) -> Segment:
        """Raises Corrupt for bytes that `encode` did not make."""
        if len(data) != _SEGMENT.size or data[0] != _VERSION:
            raise Corrupt(f"segment of {len(data)} bytes, version {data[0] if data else None}")
        _, span, base_offset, *rest = _SEGMENT.unpack(data)
        return Segment(base_offset, base_offset + span, *rest)


class Segments:
    """The segments of one partition, in order; never empty."""

    __slots__ = ("_segments", "open", "size_bytes")

    def __init__(self, segments: list[Segment]) -> None:
        assert segments
        assert all(a.end_offset == b.base_offset for a, b in pairwise(segments))
        self._segments = segments
        self.open = segments[-1]
        self.size_bytes = sum(segment.size_bytes for segment in segments)

    @staticmethod
    def starting_at(offset: int, now_ms: int, time_start: int) -> Segments:
        return Segments(
            [
                Segment(
                    offset,
                    offset,
                    created_ms=now_ms,
                    appended_ms=now_ms,
                    time_start=time_start,
                    time_end=time_start,
                )
            ]
        )

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __repr__(self) -> str:
        return "\n".join(
            (
                f"[{s.base_offset},{s.end_offset}) {s.size_bytes}B "
                f"{s.first_timestamp_ms}..{s.max_timestamp_ms} "
                f"time [{s.time_start},{s.time_end})"
            )
            for s in self
        )

    def is_full(
        self,
        end_offset: int,
        size_bytes: int,
        max_timestamp_ms: int,
        now_ms: int,
        bytes_max: int,
        life_ms: int,
    ) -> bool:
        """Whether a batch that would end at `end_offset` must begin a new segment."""
        segment = self.open
        if segment.size_bytes == 0:
            return False
        if end_offset - segment.base_offset > SPAN_MAX:
            return True
        if len(self._segments) >= SEGMENTS_MAX:
            return False
        if segment.size_bytes + size_bytes > bytes_max:
            return True
        if segment.first_timestamp_ms >= 0:
            return max_timestamp_ms - segment.first_timestamp_ms > life_ms
        return now_ms - segment.created_ms > life_ms

    def roll(self, now_ms: int, time_start: int) -> Segment:
        """Begins a new segment at the log's end and gives the one that ended. `time_start`: where its index
        entries will begin."""
        ended = self.open
        base = ended.end_offset
        self.open = Segment(
            base, base, created_ms=now_ms, appended_ms=now_ms, time_start=time_start, time_end=time_start
        )
        self._segments.append(self.open)
        return ended

    def add(self, end_offset: int, size_bytes: int, max_timestamp_ms: int, now_ms: int) -> None:
        """A batch was added to the open segment."""
        segment = self.open
        if segment.size_bytes == 0:
            segment.first_timestamp_ms = max_timestamp_ms
            segment.created_ms = now_ms
        segment.end_offset = end_offset
        segment.size_bytes += size_bytes
        self.size_bytes += size_bytes
        segment.appended_ms = now_ms
        if max_timestamp_ms > segment.max_timestamp_ms:
            segment.max_timestamp_ms = max_timestamp_ms

    def clip_times(self, time_end: int) -> list[Segment]:
        """The time stream ends at `time_end`: index entries above it are lost, and what is written there next
        is another segment's. Gives the segments that this concerns; lookups in them scan more headers."""
        clipped = [segment for segment in self._segments if segment.time_end > time_end]
        for segment in clipped:
            segment.time_start, segment.time_end = min(segment.time_start, time_end), time_end
        return clipped

    def drop_below(self, log_start: int) -> list[Segment]:
        """Forgets the segments that lie wholly below `log_start`, never the open one; gives them."""
        count = 0
        while count < len(self._segments) - 1 and self._segments[count].end_offset <= log_start:
            count += 1
        dropped = self._segments[:count]
        del self._segments[:count]
        self.size_bytes -= sum(segment.size_bytes for segment in dropped)
        return dropped

    def plan_retention(self, now_ms: int, retention_ms: int, retention_bytes: int, visible_end: int) -> int:
        """The offset below which nothing needs to be kept. Negative bounds keep everything; whole segments
        only, and none that is not wholly visible. The open one goes too once all its records are too old (or
        the bound is 0 bytes), which ends it."""
        keep_from = self._segments[0].base_offset
        excess = self.size_bytes - retention_bytes if retention_bytes >= 0 else -1
        for segment in self._segments:
            is_old = retention_ms >= 0 and now_ms - segment.latest_ms > retention_ms
            is_excess = excess - segment.size_bytes >= 0
            if not (is_old or is_excess) or segment.size_bytes == 0 or segment.end_offset > visible_end:
                break
            excess -= segment.size_bytes
            keep_from = segment.end_offset
        return keep_from

    def retention_due_ms(self, retention_ms: int) -> int:
        """When retention by time may next have something to drop: the wall time at which the oldest segment
        is too old."""
        return self._segments[0].latest_ms + max(0, retention_ms) + 1

    def find_time(self, timestamp_ms: int, log_start: int) -> list[Segment]:
        """The segments that may hold the first record at or after `timestamp_ms`, in order."""
        return [s for s in self._segments if s.max_timestamp_ms >= timestamp_ms and s.end_offset > log_start]

    def latest(self) -> Segment | None:
        """The segment with the largest timestamp, the first of equals; None when no record has one."""
        found = None
        for segment in self._segments:
            if segment.max_timestamp_ms >= 0 and (
                found is None or segment.max_timestamp_ms > found.max_timestamp_ms
            ):
                found = segment
        return found
