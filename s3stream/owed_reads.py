"""OwedReads: history, of which some may be in earlier owners' write-ahead logs alone, or be lost with one.

    in objects      the block cache reads it
    owed            its node is asked (OwedReader), until it has uploaded it
    lost            it is stepped over: entries go on behind it

Not here: what the log cache has (storage.py asks it first), how a node is asked (broker/owed_reads.py). Kept
true: a read never waits for an upload where its node answers; what is read so is in no cache here.
"""

from __future__ import annotations

from millrace.s3stream.block_cache import BlockCache
from millrace.s3stream.errors import RangeLost, RangeOwed
from millrace.s3stream.ids import StreamId, StreamRange
from millrace.s3stream.metadata import OwedReader
from millrace.s3stream.read_accumulator import ReadAccumulator


class OwedReads:
    """`reader`: None where no other node is; then what is owed is RangeOwed."""

    def __init__(self, history: BlockCache) -> None:
        self._history = history
        self.reader: OwedReader | None = None
        self.reads_from_owners = 0

    async def read(self, accumulator: ReadAccumulator) -> None:
        """As BlockCache.read; on return there may be no entry at all, where all up to the end is lost. Raises
        RangeOwed where its node does not give it in time."""
        while not accumulator.is_full:
            try:
                await self._history.read(accumulator)
                return
            except RangeLost as lost:
                accumulator.skip_to(lost.end)
            except RangeOwed as owed:
                if await self._read_owed(accumulator, owed):
                    return

    async def _read_owed(self, accumulator: ReadAccumulator, owed: RangeOwed) -> bool:
        """False where it is owed no more."""
        if self.reader is None:
            raise owed
        wanted = StreamRange(
            StreamId(accumulator.stream_id), accumulator.next_offset, min(owed.end, accumulator.end)
        )
        entries = await self.reader.read(wanted, accumulator.left_bytes)
        if entries:
            accumulator.take(list(entries))
            accumulator.has_loaded = True
            self.reads_from_owners += 1
        return bool(entries)
