"""Owed ranges: offsets of a stream that its earlier owner acknowledged, and that are in that node's
write-ahead log alone until it has uploaded them.

    the owner seals the stream at its true end           [committed end, sealed end) is owed by its node
    the node commits the range, piece by piece           it begins later, and is gone at last
    the stream is trimmed to its end, or deleted         it is gone
    an operator gives the node's log up                  it is gone, and nothing holds those offsets

The next owner begins at the sealed end and commits behind it, so that several ranges may be owed at a time,
by several nodes. Not here: which objects hold the rest (objects.py), commands
(kraft/commands/owed_ranges.py). Kept true: a node owes at most one range of a stream, at most
`OWED_RANGES_MAX` ranges of it are owed, they do not overlap, and none lies wholly below the stream's start or
beyond its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from millrace.kraft.tables.sorted_map import SortedMap, SortedMapEdit
from millrace.protocol.dataclass import dataclass
from millrace.protocol.stream_records import OwedRangeRecord
from millrace.s3stream.ids import StreamId

OWED_RANGES_MAX: Final = 8  # of one stream: a further owner uploads all it has before it closes the stream


class OwedRange(NamedTuple):
    stream_id: StreamId
    start: int  # the first offset that is not committed
    end: int  # exclusive; where the next owner began
    node_id: int  # whose log has it
    epoch: int  # of the stream, under which the node appended it
    wal_id: bytes  # of that log


@dataclass(frozen=True, slots=True)
class OwedRanges:
    by_stream: SortedMap[StreamId, tuple[OwedRange, ...]]  # in offset order
    by_node: SortedMap[tuple[int, StreamId], None]

    def of_stream(self, stream_id: int) -> tuple[OwedRange, ...]:
        return self.by_stream.get(StreamId(stream_id)) or ()

    def of_node(self, node_id: int) -> Iterator[OwedRange]:
        """By stream."""
        for (found, stream_id), _ in self.by_node.items((node_id, StreamId(0))):
            if found != node_id:
                return
            yield _of_node(self.of_stream(stream_id), node_id)

    def by(self, stream_id: int, node_id: int) -> OwedRange | None:
        """What the node owes of the stream."""
        return next((one for one in self.of_stream(stream_id) if one.node_id == node_id), None)

    def at(self, stream_id: int, offset: int) -> OwedRange | None:
        """The owed range that `offset` lies in."""
        return next((one for one in self.of_stream(stream_id) if one.start <= offset < one.end), None)

    def __iter__(self) -> Iterator[OwedRange]:
        """By stream and offset."""
        for ranges in self.by_stream.values():
            yield from ranges

    def __len__(self) -> int:
        return len(self.by_node)

    def edit(self) -> OwedRangesEdit:
        return OwedRangesEdit(self)


NO_OWED_RANGES = OwedRanges(SortedMap(), SortedMap())


class OwedRangesEdit:
    def __init__(self, origin: OwedRanges) -> None:
        self._by_stream: SortedMapEdit[StreamId, tuple[OwedRange, ...]] = origin.by_stream.edit()
        self._by_node: SortedMapEdit[tuple[int, StreamId], None] = origin.by_node.edit()

    def done(self) -> OwedRanges:
        return OwedRanges(self._by_stream.done(), self._by_node.done())

    def by(self, stream_id: StreamId, node_id: int) -> OwedRange | None:
        return next((one for one in self._by_stream.get(stream_id) or () if one.node_id == node_id), None)

    def add(self, owed: OwedRange) -> None:
        others = self._by_stream.get(owed.stream_id) or ()
        assert owed.start < owed.end, owed
        assert all(one.end <= owed.start and one.node_id != owed.node_id for one in others), (owed, others)
        self._by_stream[owed.stream_id] = (*others, owed)
        self._by_node[owed.node_id, owed.stream_id] = None

    def commit(self, owed: OwedRange, end: int) -> None:
        """What of it lies below `end` is committed."""
        assert owed.start < end <= owed.end, (owed, end)
        if end == owed.end:
            self.remove(owed)
            return
        rest = [one._replace(start=end) if one == owed else one for one in self._by_stream[owed.stream_id]]
        self._by_stream[owed.stream_id] = tuple(rest)

    def remove(self, owed: OwedRange) -> None:
        self._keep(owed.stream_id, [one for one in self._by_stream[owed.stream_id] if one != owed])
        self._by_node.pop((owed.node_id, owed.stream_id))

    def drop_below(self, stream_id: StreamId, offset: int) -> None:
        """Ranges that end at or below `offset` are owed no more. One that `offset` lies in stays whole: its
        node's entries need not begin there."""
        for owed in self._by_stream.get(stream_id) or ():
            if owed.end <= offset:
                self.remove(owed)

    def drop_stream(self, stream_id: StreamId) -> None:
        for owed in self._by_stream.get(stream_id) or ():
            self.remove(owed)

    def _keep(self, stream_id: StreamId, ranges: list[OwedRange]) -> None:
        if ranges:
            self._by_stream[stream_id] = tuple(ranges)
        else:
            self._by_stream.pop(stream_id)


def owed_range_of(record: OwedRangeRecord) -> OwedRange:
    return OwedRange(
        StreamId(record.stream_id),
        record.start_offset,
        record.end_offset,
        record.node_id,
        record.epoch,
        record.wal_id,
    )


def owed_range_record(owed: OwedRange) -> OwedRangeRecord:
    """The record that makes it as it is."""
    return OwedRangeRecord(owed.stream_id, owed.start, owed.end, owed.node_id, owed.epoch, owed.wal_id)


def _of_node(ranges: tuple[OwedRange, ...], node_id: int) -> OwedRange:
    return next(one for one in ranges if one.node_id == node_id)
