"""Keeps a shard's log a few times what lives in it: all that lives is appended again, and the log start moves to where that began.

A piece at a time, each queued when the one before is durable, among whatever else is decided. A piece holds what its keys are at that
moment, behind everything decided until then, so it is never older than a commit before it; what is decided later comes behind it.

Keeps true: the log start moves only when every piece, and everything decided before the last of them, is durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

from millrace.broker.coordinators.append_queue import AppendQueue
from millrace.broker.coordinators.group_records import record_bytes
from millrace.broker.coordinators.shard import Shard
from millrace.broker.partitions.meta_stream import Room
from millrace.broker.partitions.partition import Partition
from millrace.protocol.records import Record
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Closed

log = logging.getLogger(__name__)

REWRITE_BYTES_MIN = 4 << 20
REWRITE_RATIO = 4
PIECE_BYTES = 64 << 10


class Step:
    """In the place of a client: the shard itself waits for its records."""

    def __init__(self, take: Callable[[Any], None], drop: Callable[[int], None] = lambda _: None) -> None:
        """`drop` is for one that must know when the shard ends; most end with it."""
        self.give = take
        self.refuse = drop


class Rewriting:
    """`data_room`: each piece waits in the line of producers, so that none takes what is kept for commits while the
    store is away. `read_bytes`: how long the log was when it was loaded. `call_soon` is the loop's."""

    def __init__(
        self,
        shard: Shard,
        partition: Partition,
        queue: AppendQueue,
        data_room: Room,
        clock: Clock,
        read_bytes: int,
        call_soon: Callable[..., object],
        *,
        bytes_min: int = REWRITE_BYTES_MIN,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._shard = shard
        self._partition = partition
        self._queue = queue
        self._data_room = data_room
        self._clock = clock
        self._call_soon = call_soon
        self._bytes_min = bytes_min
        self._piece_bytes = piece_bytes
        self._freed_bytes = -read_bytes  # of all that was ever appended; below zero: what had been before
        self._pieces: Iterator[Record] | None = None
        self._start: int | None = None
        self._start_bytes = 0
        self._piece_step = Step(lambda _: self._go_on())
        self._end_step = Step(lambda _: self._end())

    @property
    def log_bytes(self) -> int:
        return self._queue.appended_bytes - self._freed_bytes

    def begin_if_due(self) -> None:
        bound = max(self._bytes_min, REWRITE_RATIO * self._shard.live_bytes)
        if self._pieces is None and self.log_bytes > bound and not self._queue.is_appending:
            self._pieces = self._shard.iter_live(self._clock.wall_ms())
            self._start = None
            self._go_on()

    def _go_on(self) -> None:
        if self._data_room.has_room(self._piece_bytes):
            self._add_piece()
        else:
            self._data_room.wait_for_room(self._piece_bytes).add_done_callback(self._on_room)

    def _on_room(self, room: asyncio.Future[None]) -> None:
        """Exhausted: a log that never has so much room at once takes a piece in parts."""
        is_refused = room.cancelled() or isinstance(room.exception(), Closed)
        if not (is_refused or self._queue.is_ended):
            self._add_piece()

    def _add_piece(self) -> None:
        assert self._pieces is not None
        piece: list[Record] = []
        piece_bytes = 0
        for record in self._pieces:
            size_bytes = record_bytes(record)
            if size_bytes > self._queue.record_bytes_max:
                self._give_up(size_bytes)
                return
            piece.append(record)
            piece_bytes += size_bytes
            if piece_bytes >= self._piece_bytes:
                break
        if piece:
            self._queue.add(piece, [(self._piece_step, None)], self._on_placed if self._start is None else None)
            return
        if self._start is None:  # nothing lives, and nothing is being appended
            self._on_placed(self._partition.high_watermark)
        self._queue.add([], [(self._end_step, None)])

    def _give_up(self, size_bytes: int) -> None:
        """The log took a record that it takes no more (its WAL is smaller now): it can live where it is only. Tried again when the log is
        twice as long; the group may have another generation by then."""
        log.warning("%r is not rewritten: the WAL takes no record of %d bytes", self._partition, size_bytes)
        self._pieces = None
        self._bytes_min = 2 * self.log_bytes

    def _on_placed(self, base_offset: int) -> None:
        self._start = base_offset
        self._start_bytes = self._queue.appended_bytes

    def _end(self) -> None:
        assert self._start is not None
        self._pieces = None
        self._freed_bytes = self._start_bytes
        # Not from within the engine's call, which this may be: the log start is an append of its own.
        self._call_soon(self._raise_log_start, self._start)

    def _raise_log_start(self, offset: int) -> None:
        if self._partition.is_led and not self._partition.is_void:
            self._partition.raise_log_start(offset, self._clock.wall_ms())
