"""Headers of the batches behind a partition's last checkpoint, read when it opens; what cannot be read is
passed over.

What the store does not give now is no damage: the opening fails, and is tried again. Damage is what fails its
checks twice, and an object that metadata names and the store says is not there. Not here: what is made of
headers and of what lacks them (state.py), and whether producers are served then (opening.py). Keeps true:
offsets stay as they are, and what is passed over is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millrace.broker.partitions.meta_stream import MetaStream
from millrace.broker.partitions.reviving import bring_back
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.state import Found, PartitionState
from millrace.protocol.batches import BatchHeader
from millrace.runtime.errors import MillraceError
from millrace.runtime.objectstore import ObjectMissing
from millrace.s3stream.errors import ObjectCorrupt, OffsetGap, OffsetTrimmed
from millrace.s3stream.objects.format import Entry
from millrace.s3stream.stream import Stream

# Small enough that the headers in it, however many, do not hold up the loop.
REPLAY_BYTES = 256 << 10
# Before bytes that fail their check are read once more: they may have been damaged on the way.
AGAIN_S = 0.2
# How far beyond now the times of records are taken to reach that nobody can read, where the topic sets no
# nearer bound.
AHEAD_MS_MAX = 86_400_000

DAMAGE = ObjectCorrupt, OffsetGap, ObjectMissing


async def replay(
    data: Stream, meta: MetaStream, state: PartitionState, settings: TopicSettings, found: Found
) -> list[tuple[int, int]]:
    """Up to the log's end. Gives the ranges that were passed over since they were given up with a write-ahead
    log. Raises what reads raise but for damage, and Corrupt for a producer's state that is none."""
    offset, given_up = state.saved_end, []
    while offset < found.data_end:
        entries, readable = await _read(data, offset, found.data_end)
        is_damaged = readable > offset
        if not is_damaged:  # nothing, or what lies behind what was given up
            readable = max(offset, entries[0].base_offset) if entries else found.data_end
        if readable > offset:
            given_up += [] if is_damaged else [(offset, readable)]
            state.pass_over(offset, readable, _latest_ms(state, settings, found.now_ms), found.now_ms)
            offset = readable
        for entry in entries:
            await _take(entry, meta, state, settings, found)
            offset = entry.end
        await asyncio.sleep(0)
    return given_up


async def is_readable(data: Stream, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether all of them can be read now, or were deleted. Raises nothing of the store's."""
    for start, end in ranges:
        offset = max(start, data.start)
        while offset < end:
            try:
                entries = await data.fetch(offset, end, REPLAY_BYTES)
                offset = entries[-1].end if entries else end
            except OffsetTrimmed:
                offset = max(offset, data.start)
            except MillraceError:  # damage is told for every read (damage_log.py)
                return False
    return True


async def _read(data: Stream, start: int, end: int) -> tuple[list[Entry], int]:
    """Entries, and the offset of the first: `start`, or what is the first to be read behind damage; none and
    `end` when nothing is."""
    offset = start
    while offset < end:
        try:
            return await _read_twice(data, offset, end), offset
        except DAMAGE:
            offset = min(end, await data.resume_after(offset))
    return [], end


async def _read_twice(data: Stream, start: int, end: int) -> list[Entry]:
    """An object that is missing was looked for more often than that (block_cache.py)."""
    try:
        return await data.fetch(start, end, REPLAY_BYTES)
    except ObjectCorrupt:
        await asyncio.sleep(AGAIN_S)
        return await data.fetch(start, end, REPLAY_BYTES)


async def _take(
    entry: Entry, meta: MetaStream, state: PartitionState, settings: TopicSettings, found: Found
) -> None:
    header, producers = BatchHeader(entry.data), state.producers
    if producers.cold is not None and producers.is_cold(header.producer_id):
        await bring_back(meta, producers, header.producer_id)
    state.replay(header, entry.end, found.now_ms, found.tick_ms, settings, settings.segment_ms)


def _latest_ms(state: PartitionState, settings: TopicSettings, now_ms: int) -> int:
    """No record is taken to be later that cannot be read."""
    rules = settings.record_rules or settings.rules
    ahead_ms = 0 if rules.is_append_time else min(rules.timestamp_after_max_ms, AHEAD_MS_MAX)
    return max(now_ms + ahead_ms, *(segment.max_timestamp_ms for segment in state.segments))
