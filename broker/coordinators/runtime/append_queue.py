"""Records in flight to a shard's log, and the deferred events that wait for them.

One batch is on its way at a time; what is added meanwhile goes into the next, so that commits share batches
the more the more there are. An event without records of its own waits for what was added before it: a read is
answered when all that it shows is durable.

Not here: what the records say (the state machine), what an end means for clients (shard.py). Keeps true: the
log's order is the order of the additions; events complete in that order, once what was added until then is
durable and the partition was still led here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from millrace.broker.coordinators.runtime.records import record_bytes
from millrace.broker.coordinators.runtime.state_machine import DeferredEvent
from millrace.broker.partitions.meta_stream import Room
from millrace.broker.partitions.partition import Partition
from millrace.protocol.batch_build import build_batch
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.records import Record
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Closed, Exhausted, Fenced

BATCH_BYTES = (
    64 << 10
)  # records of one append, where the log takes as much; building more would hold up the loop
BATCH_OVERHEAD_BYTES = 1024  # what an append takes of the room besides its records; errs upwards

Deferred = list[tuple[DeferredEvent, Any]]  # each with the answer that completes it


class _Entry:
    """Records that were added together, or a part of them. `on_appended` is told the offset that their batch
    begins at."""

    __slots__ = ("deferred", "on_appended", "records", "size_bytes")

    def __init__(
        self, records: list[Record], deferred: Deferred, on_appended: Callable[[int], None] | None
    ) -> None:
        self.records = records
        self.size_bytes = sum(map(record_bytes, records))
        self.deferred = deferred
        self.on_appended = on_appended


class AppendQueue:
    """`on_lost` is told when the log takes no more, and why; `on_failed` of what must never happen;
    `on_durable` after each batch."""

    def __init__(
        self,
        partition: Partition,
        room: Room,
        clock: Clock,
        on_durable: Callable[[], None],
        on_lost: Callable[[BaseException], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._partition = partition
        self._room = room
        self._clock = clock
        self._on_each_durable = on_durable
        self._on_lost = on_lost
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._entries: deque[_Entry] = deque()
        self._in_flight: list[_Entry] | None = None
        self._is_flush_due = False
        self._is_ended = False
        self._batch_bytes = min(BATCH_BYTES, record_bytes_max(room))
        self.queued_bytes = 0  # added, and not appended yet
        self.appended_bytes = 0  # since the beginning

    @property
    def record_bytes_max(self) -> int:
        return record_bytes_max(self._room)

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    @property
    def is_appending(self) -> bool:
        return self._in_flight is not None

    def add(
        self, records: list[Record], deferred: Deferred, on_appended: Callable[[int], None] | None = None
    ) -> None:
        """All of `deferred` complete when the records, and everything before them, are durable."""
        assert not self._is_ended
        if records:
            self._add_records(records, deferred, on_appended)
        elif self._entries:
            self._entries[-1].deferred += deferred
        elif self._in_flight is not None:
            self._in_flight[-1].deferred += deferred
        else:
            _complete(deferred)

    def _add_records(
        self, records: list[Record], deferred: Deferred, on_appended: Callable[[int], None] | None
    ) -> None:
        entry = _Entry(records, deferred, on_appended)
        self.queued_bytes += entry.size_bytes
        if entry.size_bytes <= self._batch_bytes:
            self._entries.append(entry)
        else:
            parts = [_Entry(part, [], None) for part in split(records, self._batch_bytes)]
            parts[0].on_appended, parts[-1].deferred = on_appended, deferred
            self._entries += parts
        self._flush_soon()

    def end(self) -> Deferred:
        """Append nothing more; gives the events that did not complete. What is in flight may be in the log,
        or not."""
        self._is_ended = True
        left = [*(self._in_flight or []), *self._entries]
        self._in_flight = None
        self._entries.clear()
        return [event for entry in left for event in entry.deferred]

    def _flush_soon(self) -> None:
        if self._entries and self._in_flight is None and not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(
                self._flush
            )  # what else is decided in this iteration of the loop comes along

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._is_ended or self._in_flight is not None or not self._entries:
            return
        try:
            batch = build_batch(self._take())
            needed_bytes = len(batch) + BATCH_OVERHEAD_BYTES
            if needed_bytes <= self._room.room_bytes:
                self._append(batch)
            else:
                self._room.wait_for_room(needed_bytes).add_done_callback(
                    lambda room: self._on_room(room, batch)
                )
        except Exception as error:
            self._on_failed(error)

    def _take(self) -> list[Record]:
        """The records of the next batch; their entries are in flight."""
        entries = self._in_flight = [self._entries.popleft()]
        size_bytes = entries[0].size_bytes
        while self._entries and size_bytes + self._entries[0].size_bytes <= self._batch_bytes:
            entries.append(self._entries.popleft())
            size_bytes += entries[-1].size_bytes
        self.queued_bytes -= size_bytes
        return [record for entry in entries for record in entry.records]

    def _on_room(self, room: asyncio.Future[None], batch: bytes) -> None:
        if self._is_ended or room.cancelled():
            return
        error = room.exception()
        try:
            if error is None:
                self._append(batch)
            else:
                self._on_lost(error)
        except Exception as escaped:
            self._on_failed(escaped)

    def _append(self, batch: bytes) -> None:
        try:
            base_offset = self._partition.append_own(batch, self._clock.wall_ms(), self._on_durable)
        except (KafkaError, Closed, Fenced, Exhausted) as error:  # no offset was given
            self._on_lost(error)
            return
        for entry in self._in_flight or []:
            if entry.on_appended is not None:
                entry.on_appended(base_offset)
        self.appended_bytes += len(batch)

    def _on_durable(self, append: object) -> None:
        """Called by the engine, in the order of the WAL."""
        if self._is_ended:
            return
        if self._partition.is_fenced:
            self._on_lost(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        entries, self._in_flight = self._in_flight, None
        assert entries is not None
        for entry in entries:
            _complete(entry.deferred)
        self._on_each_durable()
        self._flush_soon()


def record_bytes_max(room: Room) -> int:
    """What one record may take (`record_bytes`): a larger one the WAL would never take, not even alone."""
    return room.entry_bytes_max - BATCH_OVERHEAD_BYTES


def split(records: list[Record], batch_bytes: int) -> list[list[Record]]:
    """Parts of about `batch_bytes` or less, one at least; a record alone may be larger."""
    parts: list[list[Record]] = []
    part_bytes = batch_bytes
    for record in records:
        size_bytes = record_bytes(record)
        if part_bytes + size_bytes > batch_bytes:
            parts.append([])
            part_bytes = 0
        parts[-1].append(record)
        part_bytes += size_bytes
    return parts


def _complete(deferred: Deferred) -> None:
    for event, answer in deferred:
        event.complete(answer)
