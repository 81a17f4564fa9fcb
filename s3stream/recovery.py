"""At start: what the WAL still holds goes into objects, then every stream that was open is closed at its true
end.

    opening streams (this fences the node's older epochs) -> WAL records
        -> blocks, whose objects are put while the next ones are read; committed one after another
    -> WAL reset -> streams closed, or left to be closed while the node serves (left_open.py)

Not here: finding the end of the WAL (wal/), the upload (uploader.py). Keeps true:
  * a record is given up only when its stream is not open here any more, and nothing of it owed, or its
    offsets are committed already; one that leaves a hole behind the committed end is OffsetGap, and the start
    fails, unless the loss is accepted: what was acknowledged is never dropped in silence; so is a WAL that
    lacks some of what it owes, whose end is known;
  * the WAL is reset only after everything was committed: a crash at any point is recovered by the next start;
  * memory holds three blocks of what is not yet committed, one that is read and PUT_AT_ONCE that are put,
    whatever the WAL's size: all of them in the log cache's bytes, and small beside a large log, so that the
    first object is put while nearly all of it is still to be read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import field

from millrace.protocol.dataclass import dataclass
from millrace.runtime.errors import in_words
from millrace.s3stream.config import StreamSettings
from millrace.s3stream.errors import ObjectCorrupt, OffsetGap, StreamFenced, StreamMissing
from millrace.s3stream.ids import OpenedStream, StreamId, StreamRange
from millrace.s3stream.log_cache import CacheBlock, LogCache, SealBounds
from millrace.s3stream.metadata import StreamCatalog
from millrace.s3stream.objects.format import INT64_MAX, Entry, EntryHeader, decode_entry
from millrace.s3stream.uploader import Uploader
from millrace.wal.log import WalRecord, WriteAheadLog

log = logging.getLogger(__name__)

CLOSES_IN_FLIGHT = 1_000  # the catalog sends those that come together together
CLOSED_AT_START_MAX = 600  # streams that a start waits for: three requests
# What is read until its upload begins. Larger: the device waits for the store, and the store for the device,
# for longer; smaller: more objects.
BLOCK_BYTES_MAX = 64 << 20
# Of the first one, that the store has work from early on.
FIRST_BLOCK_BYTES = 16 << 20
# Blocks: of one the last bytes become durable, and are committed, while the next one's are sent.
PUT_AT_ONCE = 2


@dataclass(slots=True)
class Recovered:
    """What one recovery did. Bytes are those of accepted payloads."""

    accepted_count: int = 0
    accepted_bytes: int = 0
    committed_count: int = 0  # found in objects already
    unknown_count: int = 0  # of streams not open here
    unknown: dict[StreamId, StreamRange] = field(
        default_factory=dict, repr=False
    )  # what these hold, first to last offset
    behind_hole: dict[StreamId, StreamRange] = field(
        default_factory=dict, repr=False
    )  # given up by the operator's word: what lay before it is in no place that is known
    not_found: dict[StreamId, StreamRange] = field(
        default_factory=dict, repr=False
    )  # given up likewise: the WAL owed it, and did not hold it
    closed_count: int = 0
    # Where the time went, one after another: until the first record was asked for; until the last one was
    # judged, uploads of what came before included; until all was committed; until streams were closed and the
    # WAL reset.
    open_s: float = 0.0
    read_s: float = 0.0
    flush_s: float = 0.0
    close_s: float = 0.0

    @property
    def has_loss(self) -> bool:
        """Something was given up by the operator's word."""
        return bool(self.behind_hole or self.not_found)

    @property
    def phases(self) -> dict[str, float]:
        return {"open": self.open_s, "read": self.read_s, "flush": self.flush_s, "close": self.close_s}


def recovery_bounds(settings: StreamSettings) -> SealBounds:
    """At how much a block is uploaded while the WAL is recovered; no room has to be made in that."""
    payload_bytes = min(settings.upload_threshold_bytes, BLOCK_BYTES_MAX)
    return SealBounds(payload_bytes, settings.log_cache_bytes // (PUT_AT_ONCE + 2), INT64_MAX)


class ExpectedOffsets:
    """Which records of the WAL are needed, stream by stream, in the order of the WAL. Of a stream that this
    node owes some of and has open, which is so on restored metadata alone, there are two parts, and what
    others wrote between is in their WALs."""

    def __init__(self, opened: Iterable[OpenedStream], *, is_loss_accepted: bool = False) -> None:
        self._is_loss_accepted = is_loss_accepted
        self._sealed: dict[StreamId, int] = {}  # where the part ends that is read
        self._committed: dict[StreamId, int] = {}
        self._later: dict[StreamId, list[OpenedStream]] = {}  # parts behind that one
        for one in sorted(opened, key=_uncommitted_from):
            if one.stream_id in self._committed:
                self._later.setdefault(one.stream_id, []).append(one)
                continue
            self._committed[one.stream_id] = _uncommitted_from(one)
            if one.sealed_end is not None:
                self._sealed[one.stream_id] = one.sealed_end
        self._expected = dict(self._committed)
        self.has_parts = bool(self._later)

    def judge(self, entry: EntryHeader, recovered: Recovered) -> bool:
        """Whether the entry is to be uploaded. Raises OffsetGap when it does not continue what is known;
        where its loss is accepted, what lies behind a hole, or behind the end of what is owed, is given
        up."""
        expected = self._expected.get(entry.stream_id)
        if expected is None:
            recovered.unknown_count += 1
            _note(recovered.unknown, entry)
            return False
        if entry.end <= self._committed[entry.stream_id]:
            recovered.committed_count += 1
            return False
        if entry.stream_id in self._later:
            expected = self._pass_to(entry, expected, recovered)
        # Commits end where entries end: an entry that straddles the committed end, or one that comes twice,
        # tells of two histories.
        sealed_end = self._sealed.get(entry.stream_id, entry.end)
        is_behind = entry.base_offset > expected or (entry.base_offset == expected and entry.end > sealed_end)
        if is_behind and self._is_loss_accepted:
            _note(recovered.behind_hole, entry)
            return False
        if entry.base_offset != expected:
            raise OffsetGap(entry.stream_id, expected, entry.base_offset)
        if is_behind:
            raise OffsetGap(entry.stream_id, sealed_end, entry.end)
        self._expected[entry.stream_id] = entry.end
        recovered.accepted_count += 1
        recovered.accepted_bytes += entry.length_bytes
        return True

    def _pass_to(self, entry: EntryHeader, expected: int, recovered: Recovered) -> int:
        """What is expected, where the entry may be the first of the stream's next part: once the part before
        is whole, or what it lacks is given up."""
        stream_id, following = entry.stream_id, self._later[entry.stream_id][0]
        is_whole = self._sealed.get(stream_id) == expected
        if entry.base_offset != _uncommitted_from(following) or not (is_whole or self._is_loss_accepted):
            return expected
        self._note_missing(stream_id, recovered)
        del self._later[stream_id][0]
        if not self._later[stream_id]:
            del self._later[stream_id]
        self._sealed.pop(stream_id, None)
        if following.sealed_end is not None:
            self._sealed[stream_id] = following.sealed_end
        return entry.base_offset

    def end(self, recovered: Recovered) -> None:
        """All of the WAL was judged. Raises OffsetGap where it lacks some of what it owes; where the loss is
        accepted, that is told."""
        for stream_id, sealed_end in self._sealed.items():
            found_end = self._expected[stream_id]
            if found_end < sealed_end and not self._is_loss_accepted:
                raise OffsetGap(stream_id, found_end, sealed_end)
            self._note_missing(stream_id, recovered)

    def _note_missing(self, stream_id: StreamId, recovered: Recovered) -> None:
        found_end, sealed_end = self._expected[stream_id], self._sealed.get(stream_id, 0)
        if found_end < sealed_end:
            recovered.not_found[stream_id] = StreamRange(stream_id, found_end, sealed_end)


def _uncommitted_from(one: OpenedStream) -> int:
    return max(one.start, one.end)


def _note(ranges: dict[StreamId, StreamRange], entry: EntryHeader) -> None:
    before = ranges.get(entry.stream_id)
    start = entry.base_offset if before is None else before.start
    ranges[entry.stream_id] = StreamRange(entry.stream_id, start, entry.end)


async def recover(
    wal: WriteAheadLog,
    records: AsyncGenerator[WalRecord, None] | None,
    catalog: StreamCatalog,
    uploader: Uploader,
    cache: LogCache,
    bounds: SealBounds,
    before_close: Callable[[Recovered], Awaitable[None]] | None = None,
    *,
    is_loss_accepted: bool = False,
    leave_open: Callable[[list[tuple[StreamId, int]]], None] | None = None,
) -> Recovered:
    """`records` are the WAL's, None when they were read and given up. `before_close` runs when all is
    committed and before any stream is closed: which streams are open still tells what was lost; where it
    raises, the WAL stays as it is. `is_loss_accepted`: records behind a hole are given up, and told in
    `behind_hole`, and what is owed and is not there in `not_found`. On return the WAL is empty, every stream
    that was open is closed, and `cache` holds the newest of what was recovered. `leave_open`: where there is
    one it is given the streams, if they are more than CLOSED_AT_START_MAX, and none is closed. Cancelled or
    failed at any point, nothing is lost."""
    recovered = Recovered()
    lap = Laps()
    opened = await catalog.opening_streams()
    recovered.open_s = lap.seconds()
    flush = Flush(uploader, cache)
    try:
        expected = ExpectedOffsets(opened, is_loss_accepted=is_loss_accepted)
        if records is not None:
            async with aclosing(records):  # on the way out nothing of the log is being read any more
                await _read(records, expected, recovered, flush, bounds)
        expected.end(recovered)
        recovered.read_s = lap.seconds()
        cache.seal()
        for block in cache.take_sealed():
            await flush.begin(block)
        await flush.finish()
    finally:
        await flush.stop()
    recovered.flush_s = lap.seconds()
    if before_close is not None:
        await before_close(recovered)
    # In this order: a closed stream's entries are taken no more, so what counts has to be settled before the
    # first is closed. A log whose former owner has a write under way is not, before its reset.
    await wal.reset()
    streams = [(stream.stream_id, stream.epoch) for stream in opened if stream.sealed_end is None]
    if leave_open is not None and len(streams) > CLOSED_AT_START_MAX:
        leave_open(streams)
    else:
        recovered.closed_count = await close_in_catalog(catalog, streams)
    recovered.close_s = lap.seconds()
    if opened or recovered.accepted_count:
        log.info("recovered: %s", recovered)
    return recovered


async def _read(
    records: AsyncGenerator[WalRecord, None],
    expected: ExpectedOffsets,
    recovered: Recovered,
    flush: Flush,
    bounds: SealBounds,
) -> None:
    cache = flush.cache
    async for record in records:
        header, payload = _decode(record)
        if not expected.judge(header, recovered):
            continue
        if expected.has_parts:
            _part_from_others(cache, header)
        cache.put(
            header.stream_id,
            Entry(header.base_offset, header.count, payload, header.epoch, header.crc),
            record.end,
        )
        is_first_full = not flush.has_begun and cache.active.payload_bytes >= FIRST_BLOCK_BYTES
        if is_first_full or bounds.are_reached(cache.active):
            cache.seal()
        for block in cache.take_sealed():
            await flush.begin(block)


def _part_from_others(cache: LogCache, entry: EntryHeader) -> None:
    """Where other owners wrote between what of its stream came before and the entry: the two are in no upload
    together, whose ranges have no gaps, nor in the cache."""
    end = cache.end_of(entry.stream_id)
    if end is not None and end != entry.base_offset:
        if entry.stream_id in cache.active.runs:
            cache.seal()
        cache.drop(entry.stream_id)


class Flush:
    """Sealed blocks to objects, in order, while the next ones are read."""

    def __init__(self, uploader: Uploader, cache: LogCache) -> None:
        self.cache = cache
        self._uploader = uploader
        self._under_way: deque[asyncio.Task[None]] = deque()
        self.has_begun = False

    async def begin(self, block: CacheBlock) -> None:
        """Begins the block's upload; where PUT_AT_ONCE are under way, once the first of them is committed."""
        while len(self._under_way) >= PUT_AT_ONCE:
            await self._finish_first()
        self.has_begun = True
        before = self._under_way[-1] if self._under_way else None
        task = asyncio.create_task(self._upload(block, before), name=f"recovery-{block.number}")
        self._under_way.append(task)

    async def finish(self) -> None:
        while self._under_way:
            await self._finish_first()

    async def stop(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _finish_first(self) -> None:
        await self._under_way[0]
        self._under_way.popleft()

    async def _upload(self, block: CacheBlock, before: asyncio.Task[None] | None) -> None:
        await self._uploader.upload(block, before)
        self.cache.free(block)
        self.cache.evict()


class Laps:
    """Seconds of the loop's clock between one asking and the next."""

    def __init__(self) -> None:
        self._last = asyncio.get_running_loop().time()

    def seconds(self) -> float:
        last, self._last = self._last, asyncio.get_running_loop().time()
        return self._last - last


async def close_in_catalog(catalog: StreamCatalog, streams: list[tuple[StreamId, int]]) -> int:
    """Closes streams, a few at once; those that another owner took or that are gone count as closed. Gives
    how many were closed."""
    left = iter(streams)
    closed_count = 0

    async def close_some() -> None:
        nonlocal closed_count
        for stream_id, epoch in left:
            try:
                await catalog.close(stream_id, epoch)
                closed_count += 1
            except (StreamFenced, StreamMissing) as error:
                log.info("stream %d was not closed here: %s", stream_id, in_words(error))

    await asyncio.gather(*(close_some() for _ in range(min(CLOSES_IN_FLIGHT, len(streams)))))
    return closed_count


def _decode(record: WalRecord) -> tuple[EntryHeader, memoryview]:
    try:
        header, payload, end = decode_entry(record.payload, 0, record.lead, record.tail_crc)
    except ObjectCorrupt as error:
        raise ObjectCorrupt(error.reason, record.position + error.position) from None
    if end != len(record.payload):
        raise ObjectCorrupt(f"{len(record.payload) - end} bytes follow the entry", record.position + end)
    return header, payload
