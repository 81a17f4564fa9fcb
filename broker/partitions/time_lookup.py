"""From a time to a record: segments, then the time index, then batch headers, then the records of one batch.

Bounded by the index where timestamps grow; where they do not, by the segments that reach the wanted time. Only what is visible and not
below the log's start is found. Not here: what an index entry means (time_index.py), Kafka's special timestamps (handlers/list_offsets.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple, TypeVar

from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.rewrite import SLICE_RECORDS
from millrace.broker.partitions.segments import Segment
from millrace.broker.partitions.time_index import find_in_chunk, is_chunk, last_in_chunk
from millrace.broker.partitions.unpacking import Unpacking
from millrace.broker.slices import InSlices, in_slices, pause
from millrace.protocol.batches import BatchHeader
from millrace.protocol.errors import WireError
from millrace.protocol.records import times_in
from millrace.s3stream.errors import OffsetTrimmed
from millrace.s3stream.objects.format import Entry

T = TypeVar("T")
SCAN_BYTES = 256 << 10


class TimedOffset(NamedTuple):
    offset: int
    timestamp_ms: int


async def find_time(partition: Partition, timestamp_ms: int, end: int, unpacking: Unpacking) -> TimedOffset | None:
    """The first record below `end` whose timestamp is `timestamp_ms` or later."""
    return await _where_the_log_begins(partition, partial(_find_time, partition, timestamp_ms, end, unpacking))


async def find_latest(partition: Partition, end: int, unpacking: Unpacking) -> TimedOffset | None:
    """The first of the records below `end` that have the largest timestamp; `end` must be durable."""
    await partition.confirmed(end)
    return await _where_the_log_begins(partition, partial(_find_latest, partition, end, unpacking))


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


async def _find_time(partition: Partition, timestamp_ms: int, end: int, unpacking: Unpacking) -> TimedOffset | None:
    for segment in partition.state.segments.find_time(timestamp_ms, partition.log_start_offset):
        start = max(await _scan_start(partition, segment, timestamp_ms), partition.log_start_offset)
        found = await _scan(partition, start, min(segment.end_offset, end), timestamp_ms, unpacking)
        if found is not None:
            return found
    return None


async def _find_latest(partition: Partition, end: int, unpacking: Unpacking) -> TimedOffset | None:
    best: tuple[int, Segment] | None = None
    for segment in list(partition.state.segments):
        if segment.max_timestamp_ms < 0 or (best is not None and segment.max_timestamp_ms <= best[0]):
            continue
        largest = segment.max_timestamp_ms
        if segment.base_offset < partition.log_start_offset or segment.end_offset > end:
            largest = await _largest(partition, segment, end, unpacking)
        if largest >= 0 and (best is None or largest > best[0]):
            best = largest, segment
    if best is None:
        return None
    largest, segment = best
    start = max(await _scan_start(partition, segment, largest), partition.log_start_offset)
    return await _scan(partition, start, min(segment.end_offset, end), largest, unpacking)


async def _scan_start(partition: Partition, segment: Segment, timestamp_ms: int) -> int:
    """The segment's records below this offset are all earlier than `timestamp_ms`."""
    tail = partition.state.tail_of(segment)
    found = None if tail is None else tail.find(timestamp_ms)
    if found is None:
        base_offset = segment.base_offset
        found = await _search_chunks(
            partition, segment, partial(find_in_chunk, base_offset=base_offset, timestamp_ms=timestamp_ms)
        )
    return segment.base_offset if found is None else found


async def _largest_before(partition: Partition, segment: Segment, end: int) -> tuple[int, int] | None:
    """(offset, largest timestamp of the segment's records below it), as near to `end` as the index tells."""
    tail = partition.state.tail_of(segment)
    found = None if tail is None else tail.last_before(end)
    if found is None:
        base_offset = segment.base_offset
        found = await _search_chunks(
            partition, segment, partial(last_in_chunk, base_offset=base_offset, end_offset=end)
        )
    return found


async def _search_chunks(
    partition: Partition, segment: Segment, look: Callable[[bytes | memoryview], T | None]
) -> T | None:
    """A bisection over the segment's chunks in the time stream, for the last one in which `look` finds something."""
    low, high = segment.time_start, segment.time_end
    if low >= high:
        return None
    found = None
    await partition.saved()  # chunks that are on their way have their places already
    try:
        while low < high:
            (chunk, *_) = await partition.time.fetch((low + high) // 2, high, 1)
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


async def _scan(
    partition: Partition, start: int, end: int, timestamp_ms: int, unpacking: Unpacking
) -> TimedOffset | None:
    offset = start
    while offset < end:
        for entry in await partition.data.fetch(offset, end, SCAN_BYTES):
            offset = entry.end
            if BatchHeader(entry.data).max_timestamp >= timestamp_ms:
                found = await _scan_batch(entry, start, end, timestamp_ms, unpacking)
                if found is not None:
                    return found
                await pause()  # many may say of themselves that they reach the time, and do not
        await asyncio.sleep(0)
    return None


async def _scan_batch(
    entry: Entry, start: int, end: int, timestamp_ms: int, unpacking: Unpacking
) -> TimedOffset | None:
    """One whose records cannot be read, or come to more than may be unpacked, is taken for its header's word."""
    try:
        async with _times(entry, unpacking) as slices:
            async for times in slices:
                for found, found_ms in times:
                    if found_ms >= timestamp_ms and start <= found < end:
                        return TimedOffset(found, found_ms)
    except WireError:
        return TimedOffset(max(start, entry.base_offset), BatchHeader(entry.data).max_timestamp)
    return None


@asynccontextmanager
async def _times(entry: Entry, unpacking: Unpacking) -> AsyncIterator[InSlices[tuple[int, int]]]:
    """In slices, as a batch may hold millions of records."""
    header = BatchHeader(entry.data)
    async with unpacking.unpacked(entry.data, header) as payload:
        yield in_slices(times_in(header, payload), SLICE_RECORDS)


async def _largest(partition: Partition, segment: Segment, end: int, unpacking: Unpacking) -> int:
    """The largest timestamp of the part of a segment that is visible and wanted, by batches; exact at its borders, by records."""
    start, end = max(segment.base_offset, partition.log_start_offset), min(segment.end_offset, end)
    offset, largest = start, -1
    if start == segment.base_offset:  # of what lies above a log start within the segment the index does not tell
        offset, largest = await _largest_before(partition, segment, end) or (offset, largest)
    while offset < end:
        for entry in await partition.data.fetch(offset, end, SCAN_BYTES):
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
        async with _times(entry, unpacking) as slices:
            async for times in slices:
                largest = max(largest, *(time for found, time in times if start <= found < end), -1)
    except WireError:
        return BatchHeader(entry.data).max_timestamp
    return largest
