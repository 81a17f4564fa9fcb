"""Streams: which partition's, who owns them at which epoch, where they start and where what is committed
ends.

Not here: which objects hold them (objects.py), commands (kraft/commands/streams.py). Kept true: at most one
stream a role of a partition, one owner a stream, epochs and starts and ends only grow, start <= end.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from millrace.kraft.tables.owed_ranges import NO_OWED_RANGES, OwedRanges, OwedRangesEdit
from millrace.kraft.tables.sorted_map import SortedMap, SortedMapEdit
from millrace.protocol.dataclass import dataclass
from millrace.protocol.stream_records import NextIdsRecord, StreamRecord, TrimStreamRecord
from millrace.s3stream.ids import OpenedStream, StreamId, StreamRange, StreamRole

CLOSED, OPEN = 0, 1  # StreamRecord.state
ROLES = {int(role): role for role in StreamRole}


class StreamState(NamedTuple):
    stream_id: StreamId
    topic_id: bytes
    partition: int
    role: StreamRole
    epoch: int  # the partition's leader epoch under which it was opened last
    node_id: int  # the owner, or the last one
    is_open: bool
    start: int
    # of what is committed as objects, or owed by earlier owners' WALs; the owner's WAL may hold more
    end: int

    def with_topic_id(self, topic_id: bytes) -> StreamState:
        """The same; one of hundreds of thousands, so in fewer steps than `_replace`."""
        return StreamState(self[0], topic_id, *self[2:])

    def opened(self) -> OpenedStream:
        return OpenedStream(self.stream_id, self.epoch, self.start, self.end)


RoleStreams = tuple[tuple[StreamRole, StreamId], ...]  # a partition's, in order of roles


@dataclass(frozen=True, slots=True)
class Streams:
    by_id: SortedMap[StreamId, StreamState]
    partitions: SortedMap[tuple[bytes, int], RoleStreams]  # by (topic id, partition)
    open_on_node: SortedMap[tuple[int, StreamId], None]
    next_id: StreamId
    owed: OwedRanges = NO_OWED_RANGES

    def get(self, stream_id: int) -> StreamState | None:
        return self.by_id.get(StreamId(stream_id))

    def of_partition(self, topic_id: bytes, partition: int) -> list[StreamState]:
        streams = self.partitions.get((topic_id, partition)) or ()
        return [self.by_id[stream_id] for _, stream_id in streams]

    def of_role(self, topic_id: bytes, partition: int, role: StreamRole) -> StreamState | None:
        """As `of_partition`, the one of a role."""
        for found, stream_id in self.partitions.get((topic_id, partition)) or ():
            if found is role:
                return self.by_id[stream_id]
        return None

    def waits_for(self, topic_id: bytes, partition: int, gone: Container[int]) -> Iterator[int]:
        """Those of the brokers that are gone without whose write-ahead logs nobody can open the partition:
        who has a stream of it open, and who owes small states of one that is not open."""
        for stream in self.of_partition(topic_id, partition):
            if stream.is_open and stream.node_id in gone:
                yield stream.node_id
            if stream.role is StreamRole.META and not stream.is_open:
                owed = self.owed.of_stream(stream.stream_id)
                yield from (one.node_id for one in owed if one.node_id in gone)

    def of_topic(self, topic_id: bytes) -> Iterator[StreamState]:
        for (found, _), streams in self.partitions.items((topic_id, 0)):
            if found != topic_id:
                return
            for _, stream_id in streams:
                yield self.by_id[stream_id]

    def open_on(self, node_id: int) -> Iterator[StreamState]:
        for (found, stream_id), _ in self.open_on_node.items((node_id, StreamId(0))):
            if found != node_id:
                return
            yield self.by_id[stream_id]

    def are_in_log_of(self, node_id: int) -> bool:
        """Whether the node's write-ahead log may hold what is in no object: of streams that it has open, or
        that it has sealed and not uploaded yet."""
        return any(self.open_on(node_id)) or any(self.owed.of_node(node_id))

    def uncommitted_from(self, held: StreamRange) -> int:
        """Where what of a node's range of a stream is in no object begins: in what it owes, or behind all
        that is committed or owed."""
        owed = (one for one in self.owed.of_stream(held.stream_id) if one.end > held.start)
        return next((one.start for one in owed if one.start < held.end), self.by_id[held.stream_id].end)

    def in_log_of(self, node_id: int) -> dict[StreamId, int]:
        """Of each of these streams where what is in no object may begin."""
        found = {stream.stream_id: stream.end for stream in self.open_on(node_id)}
        return found | {owed.stream_id: owed.start for owed in self.owed.of_node(node_id)}

    def __len__(self) -> int:
        return len(self.by_id)


NO_STREAMS = Streams(SortedMap(), SortedMap(), SortedMap(), StreamId(0))


class StreamsEdit:
    def __init__(self, origin: Streams) -> None:
        self.by_id: SortedMapEdit[StreamId, StreamState] = origin.by_id.edit()
        self._partitions: SortedMapEdit[tuple[bytes, int], RoleStreams] = origin.partitions.edit()
        self._open_on_node: SortedMapEdit[tuple[int, StreamId], None] = origin.open_on_node.edit()
        self._next_id = origin.next_id
        self.owed: OwedRangesEdit = origin.owed.edit()

    def done(self) -> Streams:
        return Streams(
            self.by_id.done(),
            self._partitions.done(),
            self._open_on_node.done(),
            self._next_id,
            self.owed.done(),
        )

    def apply_stream(self, record: StreamRecord) -> None:
        stream_id = StreamId(record.stream_id)
        before = self.by_id.get(stream_id)
        stream = StreamState(
            stream_id,
            record.topic_id if before is None else before.topic_id,
            record.partition_index,
            ROLES[record.role],
            record.epoch,
            record.node_id,
            record.state == OPEN,
            record.start_offset,
            record.end_offset,
        )
        self._put(before, stream)

    def put_all(self, streams: Sequence[StreamState]) -> None:
        """As records of these, one after the other. Of an empty table, as a start fills it, in a few steps
        for all of them."""
        if not self._gather(streams):
            for stream in streams:
                before = self.by_id.get(stream.stream_id)
                self._put(before, stream if before is None else stream.with_topic_id(before.topic_id))

    def _gather(self, streams: Sequence[StreamState]) -> bool:
        """False, and nothing done, where the table is not empty, or has one of them."""
        entries = {stream.stream_id: stream for stream in streams}
        if len(entries) < len(streams) or not self.by_id.gather(entries):
            return False
        known, made = self._partitions, dict[tuple[bytes, int], RoleStreams]()
        for stream in streams:
            key = stream.topic_id, stream.partition
            others = made.get(key) or known.get(key)
            made[key] = with_stream(others, stream)
        known.put_all(made)
        self._open_on_node.put_all(
            {(stream.node_id, stream.stream_id): None for stream in streams if stream.is_open}
        )
        self._next_id = StreamId(max(self._next_id, max(entries) + 1))
        return True

    def _put(self, before: StreamState | None, stream: StreamState) -> None:
        assert stream.start <= stream.end, stream
        stream_id = stream.stream_id
        if before is None:
            self._add_to_partition(stream)
        was_open_at = before.node_id if before is not None and before.is_open else None
        is_open_at = stream.node_id if stream.is_open else None
        if was_open_at != is_open_at:
            if was_open_at is not None:
                self._open_on_node.pop((was_open_at, stream_id))
            if is_open_at is not None:
                self._open_on_node[is_open_at, stream_id] = None
        self.by_id[stream_id] = stream
        self._next_id = StreamId(max(self._next_id, stream_id + 1))

    def apply_trim(self, record: TrimStreamRecord) -> None:
        stream = self.by_id[StreamId(record.stream_id)]
        assert record.start_offset >= stream.start, (record, stream)
        end = max(stream.end, record.start_offset)
        self.by_id[stream.stream_id] = stream._replace(start=record.start_offset, end=end)
        self.owed.drop_below(stream.stream_id, record.start_offset)

    def apply_next_ids(self, record: NextIdsRecord) -> None:
        self._next_id = StreamId(max(self._next_id, record.next_stream_id))

    def advance(self, stream_id: StreamId, end: int) -> None:
        """More of the stream is committed."""
        stream = self.by_id[stream_id]
        if end > stream.end:
            self.by_id[stream_id] = stream._replace(end=end)

    def remove(self, stream_id: StreamId) -> None:
        stream = self.by_id.pop(stream_id)
        assert stream is not None, stream_id
        self.owed.drop_stream(stream_id)
        if stream.is_open:
            self._open_on_node.pop((stream.node_id, stream_id))
        key = stream.topic_id, stream.partition
        rest = tuple(other for other in self._partitions[key] if other[1] != stream_id)
        if rest:
            self._partitions[key] = rest
        else:
            self._partitions.pop(key)

    def _add_to_partition(self, stream: StreamState) -> None:
        key = stream.topic_id, stream.partition
        self._partitions[key] = with_stream(self._partitions.get(key), stream)


def with_stream(others: RoleStreams | None, stream: StreamState) -> RoleStreams:
    """A partition's streams, with one that it lacked."""
    own = stream.role, stream.stream_id
    if others is None:
        return (own,)
    assert all(role is not stream.role for role, _ in others), stream
    return (*others, own) if others[-1] < own else tuple(sorted((*others, own)))


def stream_record(stream: StreamState) -> StreamRecord:
    """The record that makes `stream` as it is."""
    return StreamRecord(
        stream.stream_id,
        stream.topic_id,
        stream.partition,
        stream.role,
        stream.epoch,
        stream.node_id,
        OPEN if stream.is_open else CLOSED,
        stream.start,
        stream.end,
    )
