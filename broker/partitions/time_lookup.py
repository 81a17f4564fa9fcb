"""From a time to a record: segments, then the time index, then batch headers, then the records of one batch.

Bounded by the index where timestamps grow; where they do not, by the segments that reach the wanted time; and
where batches claim later times than their records have, by the deadline of who asks (`Asker`), what is found
out about them being kept (true_times.py). Only what is visible and not below the log's start is found. Not
here: what an index entry means (time_index.py), Kafka's special timestamps (handlers/list_offsets.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple, TypeVar

from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.rewrite import CHUNK_RECORDS
from millrace.broker.partitions.segments import Segment
from millrace.broker.partitions.time_index import TimeTail, find_in_chunk, is_chunk, last_in_chunk
from millrace.broker.partitions.true_times import TrueTimes
from millrace.broker.partitions.unpacking import Unpacking
from millrace.protocol.batches import APPEND_TIME_BIT, NO_TIMESTAMP, BatchHeader
from millrace.protocol.errors import WireError
from millrace.protocol.primitives import Buffer
from millrace.protocol.records import times_in
from millrace.runtime.scheduling.chunks import InChunks, in_chunks
from millrace.s3stream.errors import OffsetTrimmed
from millrace.s3stream.objects.format import Entry

T = TypeVar("T")
SCAN_BYTES = 256 << 10
HEAVY_RECORDS = 2 * CHUNK_RECORDS


class TimedOffset(NamedTuple):
    offset: int
    timestamp_ms: int


class Asker:
    """Who looks something up, and may make the lookup wait, or end it by an exception."""

    async def go_on(self) -> None:
        """Called before a lookup reads on."""

    async def on_heavy(self) -> None:
        """Called before a batch is walked for longer than a few iterations of the loop."""

    async def on_lie(self) -> None:
        """A batch was walked that has no record of the time that it claims."""


class Lookups:
    """What lookups share: how batches are unpacked, and what was found out about those that lie."""

    def __init__(self, unpacking: Unpacking, true_times: TrueTimes | None = None) -> None:
        self.unpacking = unpacking
        self.true_times = TrueTimes() if true_times is None else true_times

    async def find_time(
        self, partition: Partition, timestamp_ms: int, end: int, asker: Asker | None = None
    ) -> TimedOffset | None:
        """The first record below `end` whose timestamp is `timestamp_ms` or later. Cancelled, it loses
        nothing."""
        lookup = _Lookup(partition, end, self, asker or Asker())
        return await _where_the_log_begins(partition, partial(lookup.find_time, timestamp_ms))

    async def find_latest(
        self, partition: Partition, end: int, asker: Asker | None = None
    ) -> TimedOffset | None:
        """The first of the records below `end` that have the largest timestamp; `end` must be durable."""
        await partition.confirmed(end)
        return await _where_the_log_begins(
            partition, _Lookup(partition, end, self, asker or Asker()).find_latest
        )


async def _where_the_log_begins(
    partition: Partition, look_up: Callable[[], Awaitable[TimedOffset | None]]
) -> TimedOffset | None:
    """Once more when retention or DeleteRecords took away what was being read: then there is less."""
    while True:
        log_start = partition.log_start_offset
        try:
            return await look_up()
        except OffsetTrimmed:
            if partition.log_start_offset == log_start:
                raise


class _Lookup:
    """One question about one partition."""

    def __init__(self, partition: Partition, end: int, shared: Lookups, asker: Asker) -> None:
        self._partition = partition
        self._end = end
        self._unpacking = shared.unpacking
        self._yield_queue = shared.unpacking.yield_queue
        self._true_times = shared.true_times
        self._asker = asker
        self._place = partition.topic_id, partition.index

    async def find_time(self, timestamp_ms: int) -> TimedOffset | None:
        partition = self._partition
        for segment in partition.state.segments.find_time(timestamp_ms, partition.log_start_offset):
            start = max(await _scan_start(partition, segment, timestamp_ms), partition.log_start_offset)
            found = await self._scan(start, min(segment.end_offset, self._end), timestamp_ms)
            if found is not None:
                return found
        return None

    async def find_latest(self) -> TimedOffset | None:
        partition, best = self._partition, None
        for segment in list(partition.state.segments):
            if segment.max_timestamp_ms < 0 or (best is not None and segment.max_timestamp_ms <= best[0]):
                continue
            largest = segment.max_timestamp_ms
            if segment.base_offset < partition.log_start_offset or segment.end_offset > self._end:
                largest = await _largest(partition, segment, self._end, self._unpacking)
            if largest >= 0 and (best is None or largest > best[0]):
                best = largest, segment
        if best is None:  # no record has a timestamp: the first of all, as Kafka answers
            return await self.find_time(NO_TIMESTAMP)
        largest, segment = best
        start = max(await _scan_start(partition, segment, largest), partition.log_start_offset)
        found = await self._scan(start, min(segment.end_offset, self._end), largest)
        return await self._find_latest_among_lies() if found is None else found

    async def _find_latest_among_lies(self) -> TimedOffset | None:
        """Where no record has the largest time that is claimed: every batch that claims more than was found
        is walked, in those segments first that claim the most."""
        largest = NO_TIMESTAMP
        for segment in sorted(self._partition.state.segments, key=lambda segment: -segment.max_timestamp_ms):
            if segment.max_timestamp_ms > largest:
                largest = await self._largest_in(segment, largest)
        return await self.find_time(largest)

    async def _largest_in(self, segment: Segment, least: int) -> int:
        """The largest timestamp of a segment's records that are visible, or `least`."""
        start, end = (
            max(segment.base_offset, self._partition.log_start_offset),
            min(segment.end_offset, self._end),
        )
        offset = start
        while (offset := self._true_times.skip(self._place, offset, least + 1)) < end:
            await self._asker.go_on()
            entries = await self._partition.data.fetch(offset, end, SCAN_BYTES)
            offset = offset if entries else end  # what is left was given up with a write-ahead log
            for entry in entries:
                offset = entry.end
                if BatchHeader(entry.data).max_timestamp > least:
                    if start <= entry.base_offset and entry.end <= end:
                        least = max(least, await self._largest_of_batch(entry))
                    else:
                        least = max(least, await _largest_in_batch(entry, start, end, self._unpacking))
                    await self._yield_queue.yield_now()
            await asyncio.sleep(0)
        return least

    async def _largest_of_batch(self, entry: Entry) -> int:
        known = self._true_times.largest_of(self._place, entry.base_offset)
        if known is not None:
            return known
        header = BatchHeader(entry.data)
        await self._weigh(header)
        try:
            async with self._unpacking.unpacked(entry.data, header) as payload:
                largest = await self._largest_of(header, payload)
                if largest is None:
                    largest = NO_TIMESTAMP
                    async for times in in_chunks(times_in(header, payload), CHUNK_RECORDS, self._yield_queue):
                        largest = max(largest, *(time for _, time in times))
        except WireError:
            return header.max_timestamp
        await self._judge(entry, header, largest)
        return largest

    async def _judge(self, entry: Entry, header: BatchHeader, largest: int) -> None:
        if largest < header.max_timestamp:
            self._true_times.note_batch(self._place, entry.base_offset, largest)
            await self._asker.on_lie()

    async def _scan(self, start: int, end: int, timestamp_ms: int) -> TimedOffset | None:
        offset = start
        while (offset := self._true_times.skip(self._place, offset, timestamp_ms)) < end:
            await self._asker.go_on()
            first, bound, has_lies = -1, NO_TIMESTAMP, False
            entries = await self._partition.data.fetch(offset, end, SCAN_BYTES)
            offset = offset if entries else end
            for entry in entries:
                first = entry.base_offset if first < 0 else first
                offset, largest = entry.end, BatchHeader(entry.data).max_timestamp
                if largest >= timestamp_ms:
                    found, largest = await self._scan_batch(entry, start, end, timestamp_ms)
                    if found is not None:
                        return found
                    has_lies = True
                    # Many may say of themselves that they reach the time, and do not.
                    await self._yield_queue.yield_now()
                bound = max(bound, largest)
            if has_lies:
                self._true_times.note_stretch(self._place, first, offset, bound)
            await asyncio.sleep(0)
        return None

    async def _scan_batch(
        self, entry: Entry, start: int, end: int, timestamp_ms: int
    ) -> tuple[TimedOffset | None, int]:
        """The record, and the largest timestamp of the batch as far as it is known. One whose records cannot
        be read, or come to more than may be unpacked, is taken for its header's word."""
        known = self._true_times.largest_of(self._place, entry.base_offset)
        if known is not None and known < timestamp_ms:
            return None, known
        header = BatchHeader(entry.data)
        claimed = header.max_timestamp
        await self._weigh(header)
        try:
            async with self._unpacking.unpacked(entry.data, header) as payload:
                largest = await self._largest_of(header, payload)
                if largest is None or largest >= timestamp_ms:
                    largest = NO_TIMESTAMP
                    async for times in in_chunks(times_in(header, payload), CHUNK_RECORDS, self._yield_queue):
                        for found, found_ms in times:
                            if found_ms >= timestamp_ms and start <= found < end:
                                return TimedOffset(found, found_ms), claimed
                        largest = max(largest, *(found_ms for _, found_ms in times))
        except WireError:
            return TimedOffset(max(start, entry.base_offset), claimed), claimed
        await self._judge(entry, header, largest)
        return None, largest

    async def _weigh(self, header: BatchHeader) -> None:
        """Before it is unpacked: who waits here may not hold what others need for theirs."""
        if header.record_count > HEAVY_RECORDS and not self._unpacking.is_walk_compiled:
            await self._asker.on_heavy()

    async def _largest_of(self, header: BatchHeader, payload: Buffer) -> int | None:
        """None: only a walk in Python tells."""
        if header.attributes & APPEND_TIME_BIT:
            return header.max_timestamp
        return await self._unpacking.largest_time(header, payload)


async def _scan_start(partition: Partition, segment: Segment, timestamp_ms: int) -> int:
    """The segment's records below this offset are all earlier than `timestamp_ms`."""
    found = await _search_index(
        partition,
        segment,
        lambda tail: tail.find(timestamp_ms),
        lambda chunk: find_in_chunk(chunk, segment.base_offset, timestamp_ms),
    )
    return segment.base_offset if found is None else found


async def _largest_before(partition: Partition, segment: Segment, end: int) -> tuple[int, int] | None:
    """(offset, largest timestamp of the segment's records below it), as near to `end` as the index tells."""
    return await _search_index(
        partition,
        segment,
        lambda tail: tail.last_before(end),
        lambda chunk: last_in_chunk(chunk, segment.base_offset, end),
    )


async def _search_index(
    partition: Partition,
    segment: Segment,
    look_in_tail: Callable[[TimeTail], T | None],
    look_in_chunk: Callable[[bytes | memoryview], T | None],
) -> T | None:
    """What the last entry says in which either finds something: those not stored yet are behind all that
    are."""
    tail = partition.state.tail_of(segment)
    found = None if tail is None else look_in_tail(tail)
    return await _search_chunks(partition, segment, look_in_chunk) if found is None else found


async def _search_chunks(
    partition: Partition, segment: Segment, look: Callable[[bytes | memoryview], T | None]
) -> T | None:
    """A bisection over the segment's chunks in the time stream, for the last one in which `look` finds
    something."""
    low, high = segment.time_start, segment.time_end
    if low >= high:
        return None
    found = None
    await partition.saved()  # chunks that are on their way have their places already
    try:
        while low < high:
            chunks = await partition.time.fetch((low + high) // 2, high, 1)
            if not chunks:  # they were given up with a write-ahead log
                high = (low + high) // 2
                continue
            chunk = chunks[0]
            if not is_chunk(chunk.data):
                return None
            here = look(chunk.data)
            if here is None:
                high = chunk.base_offset
            else:
                found, low = here, chunk.end
    except OffsetTrimmed:  # retention was quicker; there is less to scan, too
        return None
    return found


@asynccontextmanager
async def _times(entry: Entry, unpacking: Unpacking) -> AsyncIterator[InChunks[tuple[int, int]]]:
    """In chunks, as a batch may hold millions of records."""
    header = BatchHeader(entry.data)
    async with unpacking.unpacked(entry.data, header) as payload:
        yield in_chunks(times_in(header, payload), CHUNK_RECORDS, unpacking.yield_queue)


async def _largest(partition: Partition, segment: Segment, end: int, unpacking: Unpacking) -> int:
    """The largest timestamp of the part of a segment that is visible and wanted, by batches; exact at its
    borders, by records."""
    start, end = max(segment.base_offset, partition.log_start_offset), min(segment.end_offset, end)
    offset, largest = start, -1
    if (
        start == segment.base_offset
    ):  # of what lies above a log start within the segment the index does not tell
        offset, largest = await _largest_before(partition, segment, end) or (offset, largest)
    while offset < end:
        entries = await partition.data.fetch(offset, end, SCAN_BYTES)
        offset = offset if entries else end
        for entry in entries:
            offset = entry.end
            if entry.base_offset >= start and entry.end <= end:
                largest = max(largest, BatchHeader(entry.data).max_timestamp)
            else:
                largest = max(largest, await _largest_in_batch(entry, start, end, unpacking))
        await asyncio.sleep(0)
    return largest


async def _largest_in_batch(entry: Entry, start: int, end: int, unpacking: Unpacking) -> int:
    largest = -1
    try:
        async with _times(entry, unpacking) as chunks:
            async for times in chunks:
                largest = max(largest, *(time for found, time in times if start <= found < end), -1)
    except WireError:
        return BatchHeader(entry.data).max_timestamp
    return largest
