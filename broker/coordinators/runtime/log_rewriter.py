"""Keeps a shard's log a few times what lives in it: all that lives is appended again, and the log start moves
to where that began.

A chunk at a time, each queued when the one before is durable, among whatever else is decided. A chunk holds
what its keys are at that moment, behind everything decided until then, so it is never older than a decision
before it; what is decided later comes behind it.

Keeps true: the log start moves only when every chunk, and everything decided before the last of them, is
durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import chain

from millrace.broker.coordinators.runtime.append_queue import AppendQueue
from millrace.broker.coordinators.runtime.deferred import Callback
from millrace.broker.coordinators.runtime.records import record_bytes
from millrace.broker.coordinators.runtime.state_machine import StateMachine
from millrace.broker.coordinators.runtime.unknown_records import UnknownRecords
from millrace.broker.partitions.meta_stream import Room
from millrace.broker.partitions.partition import Partition
from millrace.protocol.records import Record
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Closed

log = logging.getLogger(__name__)

REWRITE_BYTES_MIN = 4 << 20
REWRITE_RATIO = 4
CHUNK_BYTES = 64 << 10


class LogRewriter:
    """`data_room`: each chunk waits in the queue of producers, so that none takes what is kept for
    coordinators while the store is away. `read_bytes`: how long the log was when it was loaded. `call_soon`
    is the loop's."""

    def __init__(
        self,
        machine: StateMachine,
        unknown: UnknownRecords,
        partition: Partition,
        queue: AppendQueue,
        data_room: Room,
        clock: Clock,
        read_bytes: int,
        call_soon: Callable[..., object],
        *,
        bytes_min: int = REWRITE_BYTES_MIN,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._machine = machine
        self._unknown = unknown
        self._partition = partition
        self._queue = queue
        self._data_room = data_room
        self._clock = clock
        self._call_soon = call_soon
        self._bytes_min = bytes_min
        self._chunk_bytes = chunk_bytes
        self._freed_bytes = -read_bytes  # of all that was ever appended; below zero: what had been before
        self._records: Iterator[Record] | None = None
        self._start: int | None = None
        self._start_bytes = 0
        self._on_chunk = Callback(lambda _: self._go_on())
        self._on_last = Callback(lambda _: self._end())

    @property
    def log_bytes(self) -> int:
        return self._queue.appended_bytes - self._freed_bytes

    def begin_if_due(self) -> None:
        """Begin a rewrite, unless one is under way, the log is short, or it alone has what cannot be kept in
        memory."""
        if self._records is not None or self._queue.is_appending or not self._unknown.is_complete:
            return
        live_bytes = self._machine.live_bytes + self._unknown.live_bytes
        if self.log_bytes > max(self._bytes_min, REWRITE_RATIO * live_bytes):
            # What is unknown comes last: it may be a later value of a key that the state machine has an older
            # one of.
            self._records = chain(self._machine.snapshot(self._clock.wall_ms()), self._unknown.snapshot())
            self._start = None
            self._go_on()

    def _go_on(self) -> None:
        if self._data_room.has_room(self._chunk_bytes):
            self._add_chunk()
        else:
            self._data_room.wait_for_room(self._chunk_bytes).add_done_callback(self._on_room)

    def _on_room(self, room: asyncio.Future[None]) -> None:
        """Exhausted: a log that never has so much room at once takes a chunk in parts."""
        is_refused = room.cancelled() or isinstance(room.exception(), Closed)
        if not (is_refused or self._queue.is_ended):
            self._add_chunk()

    def _add_chunk(self) -> None:
        assert self._records is not None
        chunk: list[Record] = []
        chunk_bytes = 0
        for record in self._records:
            size_bytes = record_bytes(record)
            if size_bytes > self._queue.record_bytes_max:
                self._give_up(size_bytes)
                return
            chunk.append(record)
            chunk_bytes += size_bytes
            if chunk_bytes >= self._chunk_bytes:
                break
        if chunk:
            self._queue.add(
                chunk, [(self._on_chunk, None)], self._on_appended if self._start is None else None
            )
            return
        if self._start is None:  # nothing lives, and nothing is being appended
            self._on_appended(self._partition.high_watermark)
        self._queue.add([], [(self._on_last, None)])

    def _give_up(self, size_bytes: int) -> None:
        """The log took a record that it takes no more (its WAL is smaller now): it can live where it is only.
        Tried again when the log is twice as long; the state may have changed by then."""
        log.warning(
            "coordinator shard %r not rewritten: the WAL takes no record of %d bytes; its log grows until a "
            "larger WAL is given",
            self._partition,
            size_bytes,
        )
        self._records = None
        self._bytes_min = 2 * self.log_bytes

    def _on_appended(self, base_offset: int) -> None:
        self._start = base_offset
        self._start_bytes = self._queue.appended_bytes

    def _end(self) -> None:
        assert self._start is not None
        self._records = None
        self._freed_bytes = self._start_bytes
        # Not from within the engine's call, which this may be: the log start is an append of its own.
        self._call_soon(self._raise_log_start, self._start)

    def _raise_log_start(self, offset: int) -> None:
        if self._partition.is_led and not self._partition.is_fenced:
            self._partition.raise_log_start(offset, self._clock.wall_ms())
