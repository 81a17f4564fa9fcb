"""What a partition remembers besides its records, and how that becomes values of its meta stream. Pure.

    kind        number        value
    LOG_START   0             u8 version, 7 zero, i64: no record below it is shown any more
    CHECKPOINT  0             u8 version, 7 zero, i64: the end of the log when the kinds below were written
    EPOCHS      0             epochs.py
    PRODUCERS   0             producers.py
    SEGMENT     base offset   segments.py
    COLD_BLOCK  block         cold_producers.py: states of producers that are in the log and not in memory
    COLD_INDEX  0             cold_producers.py: which of these blocks count

A checkpoint is written in one piece. What came behind it is read again from the batches' headers at the next
opening (`replay`), so a checkpoint at the log's very end is what a clean shutdown leaves, and needs no flag:
nothing has to be written when a partition opens.

Time index entries go to the time stream just before the checkpoint that names their places. A crash between
the two leaves bytes there that no segment names; the open segment then ends at the checkpoint and a new one
begins, whose slice lies behind them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from millrace.broker.partitions.cold_producers import (
    BlockHead,
    ColdProducers,
    decode_block_head,
    decode_index,
    encode_index,
)
from millrace.broker.partitions.epochs import Epochs
from millrace.broker.partitions.producers import Producer, Producers, WrittenBatch
from millrace.broker.partitions.segments import SPAN_MAX, Segment, Segments
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.time_index import CHUNK_HEADER_BYTES, ENTRY_BYTES, TimeTail
from millrace.broker.state_memory import StateMemory
from millrace.protocol.batches import BatchHeader
from millrace.protocol.dataclass import dataclass
from millrace.runtime.errors import Corrupt

LOG_START, CHECKPOINT, EPOCHS, PRODUCERS, SEGMENT, COLD_BLOCK, COLD_INDEX = range(1, 8)
KEY_LOG_START = LOG_START, 0
KEY_CHECKPOINT = CHECKPOINT, 0
KEY_EPOCHS = EPOCHS, 0
KEY_PRODUCERS = PRODUCERS, 0
KEY_COLD_INDEX = COLD_INDEX, 0
# Kinds whose values stay in the log: what is kept of each while a partition opens.
FAR_KINDS = {COLD_BLOCK: decode_block_head}

_OFFSET = struct.Struct(">B7xq")
_VERSION = 1

Values = dict[tuple[int, int], bytes | None]


@dataclass(slots=True)
class Checkpoint:
    """`chunks` go to the time stream, in order, then `values` to the meta stream, as one."""

    chunks: list[bytes]
    values: Values


class PartitionState:
    """Of one open partition. `saved_end`: the log's end at the last checkpoint."""

    __slots__ = (
        "_changed",
        "_checkpoint_end",
        "_ended",
        "_is_cold_indexed",
        "_is_epochs_changed",
        "_producers_end",
        "_stale",
        "doubts",
        "epochs",
        "is_cut",
        "log_start_offset",
        "producers",
        "saved_end",
        "segments",
        "tail",
        "unsaved_bytes",
    )

    def __init__(
        self, segments: Segments, epochs: Epochs, producers: Producers, log_start_offset: int, saved_end: int
    ) -> None:
        self.segments = segments
        self.epochs = epochs
        self.producers = producers
        self.log_start_offset = log_start_offset
        self.saved_end = saved_end
        self.unsaved_bytes = 0
        self.tail = TimeTail(segments.open.base_offset, segments.open.max_timestamp_ms)
        self._ended: list[tuple[Segment, TimeTail]] = []  # segments that ended since the last checkpoint
        self._changed: dict[int, Segment] = {}
        self._is_epochs_changed = False
        self._producers_end = saved_end  # batches below it are in `producers` already
        self._stale: list[int] = []  # segments that are stored and do not exist
        self._checkpoint_end = saved_end  # what the stored checkpoint says, as far as there is one
        self._is_cold_indexed = False  # an index of cold producers is stored
        # what is stored tells of more than there is: to be written anew before anything is appended
        self.is_cut = False
        # [start, end) that could not be read, and might tell of producers
        self.doubts: list[tuple[int, int]] = []

    # -- while it is open

    def add(
        self,
        end_offset: int,
        size_bytes: int,
        max_timestamp_ms: int,
        now_ms: int,
        settings: TopicSettings,
        life_ms: int,
    ) -> None:
        """A batch that ends at `end_offset` is appended at the log's end. `life_ms`: segment.ms less its
        jitter."""
        segments = self.segments
        if segments.is_full(
            end_offset, size_bytes, max_timestamp_ms, now_ms, settings.rules.segment_bytes, life_ms
        ):
            self.roll(now_ms)
        segments.add(end_offset, size_bytes, max_timestamp_ms, now_ms)
        self.tail.note(end_offset, max_timestamp_ms, size_bytes, settings.index_interval_bytes)
        self.unsaved_bytes += size_bytes

    def roll(self, now_ms: int) -> None:
        ended = self.segments.roll(now_ms, 0)
        self._ended.append((ended, self.tail))
        self._changed[ended.base_offset] = ended
        self.tail = TimeTail(ended.end_offset)

    def begin_epoch(self, epoch: int, start_offset: int) -> None:
        if self.epochs.assign(epoch, start_offset):
            self._is_epochs_changed = True

    def replay(
        self,
        header: BatchHeader,
        end_offset: int,
        now_ms: int,
        tick_ms: int,
        settings: TopicSettings,
        life_ms: int,
    ) -> None:
        """A batch that lies behind the checkpoint, found when the partition opens."""
        self.begin_epoch(header.leader_epoch, header.base_offset)
        self.add(end_offset, header.size_bytes, header.max_timestamp, now_ms, settings, life_ms)
        if header.producer_id >= 0 and header.base_sequence >= 0 and end_offset > self._producers_end:
            batch = WrittenBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                end_offset - 1,
                header.max_timestamp,
            )
            self.producers.replay(header.producer_id, header.producer_epoch, batch, tick_ms)

    def pass_over(self, start: int, end: int, latest_ms: int, now_ms: int) -> None:
        """[start, end), to be replayed, cannot be read. It gets segments of its own, which claim times up to
        `latest_ms`: so a lookup never takes it for read, and retention keeps it. Of bytes they count one
        each. Whoever was known may have written there."""
        if end > self._producers_end:
            self.doubts.append((start, end))
            self.producers.forget_all()
        while start < end:
            if self.segments.open.size_bytes:
                self.roll(now_ms)
            start = min(end, start + SPAN_MAX)
            self.segments.add(start, 1, latest_ms, now_ms)
            self.unsaved_bytes += 1
        self.roll(now_ms)

    def raise_log_start(self, offset: int, now_ms: int) -> Values:
        """Nothing below `offset` is wanted any more: the values that say so. Showing it is the caller's, once
        they are durable."""
        if offset >= self.segments.open.end_offset and self.segments.open.size_bytes:
            self.roll(now_ms)
        values: Values = {KEY_LOG_START: _OFFSET.pack(_VERSION, offset)}
        for segment in self.segments.drop_below(offset):
            values[SEGMENT, segment.base_offset] = None
            self._changed.pop(segment.base_offset, None)
        self._ended = [(segment, tail) for segment, tail in self._ended if segment.end_offset > offset]
        return values

    def log_start_shown(self, offset: int) -> None:
        """Readers see `offset` as the log's start: leader epochs that ended below it are forgotten. Not
        before, or who asks where such an epoch ended is sent to a start that the log does not show yet."""
        if self.epochs.raise_start(offset):
            self._is_epochs_changed = True

    def tail_of(self, segment: Segment) -> TimeTail | None:
        """The entries of a segment that are not in the time stream yet."""
        if segment is self.segments.open:
            return self.tail
        return next((tail for ended, tail in self._ended if ended is segment), None)

    def time_start(self, time_end: int) -> int:
        """Where the time stream's first needed byte lies; `time_end` when none is needed."""
        return next((s.time_start for s in self.segments if s.time_end > s.time_start), time_end)

    # -- storing

    @property
    def is_saved(self) -> bool:
        """A checkpoint now would say nothing that the next opening does not find by itself. An epoch that
        wrote nothing is such a thing; and while there are doubts none is written, so that the next opening
        looks again."""
        return bool(self.doubts) or not (self.unsaved_bytes or self._changed or self.producers.is_changed)

    @property
    def checkpoint_bytes(self) -> int:
        """What a checkpoint would take now, at most."""
        tails = sum(
            CHUNK_HEADER_BYTES + ENTRY_BYTES * len(tail) for _, tail in self._ended
        ) + ENTRY_BYTES * len(self.tail)
        producers = self.producers.snapshot_bytes if self.producers.is_changed else 0
        cold = self.producers.cold
        producers += 0 if cold is None else cold.index_bytes
        return (
            tails
            + producers
            + 100 * (2 + len(self._changed))
            + 12 * len(self.epochs.entries)
            + 4096 * (3 + len(self._ended))
        )

    def forget_times(self) -> None:
        """Gives up the index entries that were not stored: lookups in their place scan more headers."""
        self._ended = []
        self.tail.clear()

    def checkpoint(self, log_end: int, time_end: int, tick_ms: int) -> Checkpoint:
        """Everything that changed since the last one. `time_end`: the time stream's next offset."""
        chunks = []
        for segment, tail in [*self._ended, (self.segments.open, self.tail)]:
            self._changed[segment.base_offset] = segment
            if len(tail):
                chunk = tail.encode()
                tail.clear()
                chunks.append(chunk)
                if segment.time_start == segment.time_end:
                    segment.time_start = time_end
                time_end += len(chunk)
                segment.time_end = time_end
        values: Values = {(SEGMENT, base): None for base in self._stale}
        values |= {(SEGMENT, base): segment.encode() for base, segment in self._changed.items()}
        if self._is_epochs_changed:
            values[KEY_EPOCHS] = self.epochs.encode()
        if self.producers.is_changed:
            values[KEY_PRODUCERS] = self.producers.snapshot(tick_ms)
            self.producers.is_changed = False
            values |= self._drop_retired()
        values[KEY_CHECKPOINT] = _OFFSET.pack(_VERSION, log_end)
        self._checkpoint_end = log_end
        if self._is_cold_indexed:
            values[KEY_COLD_INDEX] = self._cold_index(tick_ms)
        self._ended, self._changed, self._stale, self._is_epochs_changed = [], {}, [], False
        self.saved_end, self.unsaved_bytes = log_end, 0
        return Checkpoint(chunks, values)

    def give_up(self, leader_epoch: int, log_end: int, time_end: int, tick_ms: int) -> Values:
        """What the log does not have any more is not told of any more: values to be durable before anything
        is appended, for offsets that come to lie there again would make the stored ones look right."""
        self.is_cut = False
        self.doubts = []
        self.begin_epoch(leader_epoch, log_end)
        self.forget_times()
        self.producers.is_changed = True
        values = self.checkpoint(log_end, time_end, tick_ms).values
        values[KEY_LOG_START] = _OFFSET.pack(_VERSION, self.log_start_offset)
        return values

    # -- cold producers

    def put_cold(self, taken: Sequence[Producer], tick_ms: int) -> Values:
        """These producers leave memory for the log: what to write, in this iteration of the loop."""
        number, block = self.producers.put_cold(taken, tick_ms)
        return {(COLD_BLOCK, number): block, KEY_COLD_INDEX: self._cold_index(tick_ms)}

    def _cold_index(self, tick_ms: int) -> bytes | None:
        """None when there are no blocks: the stored index goes."""
        cold = self.producers.cold
        self._is_cold_indexed = bool(cold)
        if not cold:
            return None
        # What is retired counts until a checkpoint has what came back from it.
        ages_ms = dict.fromkeys(sorted(cold.retired), 0)
        ages_ms |= {number: max(0, tick_ms - block.newest_ms) for number, block in cold.blocks.items()}
        return encode_index(self._checkpoint_end, dict(sorted(ages_ms.items())))

    def _drop_retired(self) -> Values:
        """For a checkpoint that has in its snapshot whoever came back."""
        cold = self.producers.cold
        if cold is None:
            return {}
        gone = [*cold.retired, *cold.void]
        cold.retired, cold.void = [], []
        return {(COLD_BLOCK, number): None for number in gone}

    def adopt_cold(self, heads: Mapping[int, BlockHead], index: bytes | None, found: Found) -> Iterator[None]:
        """What the log has of producers that are not in memory, a block a step. Blocks that the index does
        not name, or of another checkpoint, are void and leave the log with the next one."""
        self._is_cold_indexed = index is not None
        log_end, ages_ms = (-1, {}) if index is None else decode_index(index)
        counted = ages_ms if log_end == self._checkpoint_end >= found.data_start else {}
        if not heads:
            return
        memory = self.producers.memory
        cold = self.producers.cold = ColdProducers(memory)
        for number in sorted(heads):
            age_ms = counted.get(number)
            if age_ms is None:
                cold.skip_block(number)
                self.producers.is_changed = True
                continue
            head = heads[number]
            cold.adopt_block(number, found.tick_ms - age_ms, head.age_ms, found.data_end)
            for producer_id in head.ids:
                cold.add(producer_id, number, memory.restored)
            yield
        for producer in self.producers:  # what memory has is newer
            cold.remove(producer.producer_id, memory.restored)


@dataclass(slots=True)
class Found:
    """What the streams were found to hold: [data_start, data_end), and where the next time index byte would
    go."""

    data_start: int
    data_end: int
    time_end: int
    now_ms: int
    tick_ms: int
    leader_epoch: int = -1  # under which the partition opens


def restore(
    get: Callable[[tuple[int, int]], bytes | None],
    segment_values: Mapping[int, bytes],
    found: Found,
    memory: StateMemory | None = None,
) -> PartitionState:
    """The state as of the last checkpoint, without its cold producers (`adopt_cold`); what lies behind
    `saved_end` is to be replayed. Raises Corrupt for values that are none.

    A start that gives up records of the write-ahead log raises the leader epoch. What an older epoch said of
    offsets above the log's end is given up then (`is_cut`): segments that reach there are filled anew from
    what is left, producers keep the batches that are left, those in the log are forgotten, and nothing below
    the end is lost. Without a newer epoch it is Corrupt.

    Batches that were deleted without a checkpoint behind them leave no producer known that does not write
    above them: as in Kafka, such a producer goes on at any sequence. What an older checkpoint says of it
    would refuse it for ever."""
    log_start = max(found.data_start, _offset_of(get(KEY_LOG_START), found.data_start))
    checkpoint = _offset_of(get(KEY_CHECKPOINT), found.data_start)
    epochs_value, producers_value = get(KEY_EPOCHS), get(KEY_PRODUCERS)
    epochs = Epochs() if epochs_value is None else Epochs.decode(epochs_value)
    is_cut = max(checkpoint, log_start) > found.data_end
    if is_cut and found.leader_epoch <= epochs.latest:
        raise Corrupt(f"checkpoint {checkpoint}, log start {log_start}: above the log's end {found.data_end}")
    checkpoint, log_start = min(checkpoint, found.data_end), min(log_start, found.data_end)
    epochs.cut_at(found.data_end)
    if producers_value is None or checkpoint < found.data_start:
        producers = Producers(memory)
    else:
        producers = Producers.restore(producers_value, found.tick_ms, memory)
    if is_cut:
        producers.cut_at(found.data_end)
    saved = {base: Segment.decode(value) for base, value in segment_values.items()}
    segments = _segments(saved, log_start, checkpoint, found, is_cut=is_cut)
    clipped = segments.clip_times(found.time_end)
    state = PartitionState(segments, epochs, producers, log_start, segments.open.end_offset)
    state._producers_end = state._checkpoint_end = checkpoint
    kept = {segment.base_offset for segment in segments}
    state._stale = [base for base in segment_values if base not in kept]
    if is_cut or clipped:
        state.is_cut = state._is_epochs_changed = True
        state._changed = {segment.base_offset: segment for segment in clipped}
    return state


def _offset_of(value: bytes | None, missing: int) -> int:
    if value is None:
        return missing
    if len(value) != _OFFSET.size or value[0] != _VERSION:
        raise Corrupt(f"an offset of {len(value)} bytes")
    return int(_OFFSET.unpack(value)[1])


def _segments(
    values: Mapping[int, Segment], log_start: int, checkpoint: int, found: Found, *, is_cut: bool
) -> Segments:
    """As saved, if they cover what is left of the log up to the checkpoint; else one that is to be filled by
    replaying, from the log's start, or from the checkpoint where that is lower: what lies between is needed
    for the producers. Of a log that was cut, those that are left whole, and the rest of it is replayed."""
    bases = sorted(values)
    saved = [values[base] for base in bases]
    is_whole = all(a.end_offset == b.base_offset for a, b in pairwise(saved))
    is_whole = is_whole and all(
        base == segment.base_offset for base, segment in zip(bases, saved, strict=True)
    )
    if is_cut:
        saved = [segment for segment in saved if segment.end_offset <= checkpoint]
        is_whole = is_whole and bool(saved) and saved[-1].end_offset >= found.data_start
    else:
        is_whole = is_whole and bool(saved) and saved[-1].end_offset == checkpoint >= found.data_start
    if not is_whole:
        return Segments.starting_at(max(found.data_start, min(log_start, checkpoint)), found.now_ms, 0)
    segments = Segments(saved)
    segments.drop_below(log_start)
    # The open one that is saved ends here: what is left behind it begins another, as where the time stream
    # has bytes of nobody's.
    has_foreign_times = (
        segments.open.time_end > segments.open.time_start and segments.open.time_end != found.time_end
    )
    if has_foreign_times or (is_cut and segments.open.end_offset < checkpoint):
        segments.roll(found.now_ms, 0)
    return segments
