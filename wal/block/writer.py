"""Carries closed blocks to the file, a few writes at a time, and confirms them in order.

It decides nothing about batching, nor how many writes are worth having under way (pace.py). The window, from
what is confirmed on:

    confirmed                      begun                       given
        | in flight, some done      | closed, in order          |
        +---------------------------+---------------------------+
        |<--- window_bytes, or one block alone --->|

Asserted at every step: blocks come and begin in order of position; what is in flight begins at `confirmed`
and is held together by each block's previous end; no more than the window is under way, unless it is a single
block; no block names as confirmed what is not. Writes may complete in any order; `confirmed` moves only over
a run of completed ones, so everything below it is durable. The first failure is the last word: `on_failed` is
called once and nothing is confirmed after it, since the outcome of that write is unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from millrace.wal.block.batcher import ClosedBlock
from millrace.wal.block.layout import Geometry
from millrace.wal.block.pace import IO_BYTES, Depth, IopsLimit


class Writable(Protocol):
    """A block file, or what fences one: a write that ends well may be confirmed."""

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]: ...


class BlockWriter:
    def __init__(
        self,
        file: Writable,
        geometry: Geometry,
        confirmed: int,
        *,
        writes_in_flight: int,
        writes_at_first: int,
        window_bytes: int,
        block_bytes_allowed: int,
        on_group: Callable[[], None],
        on_failed: Callable[[BaseException], None],
        on_slot: Callable[[], None] = lambda: None,
        iops: int = 0,
        operations_beside: int = 0,
    ) -> None:
        """`on_slot`: a write may begin again that the limit on operations held back. `operations_beside`:
        that each write costs besides."""
        self._loop = asyncio.get_running_loop()
        self._file = file
        self._geometry = geometry
        self._depth = Depth(writes_in_flight, writes_at_first)
        self._limit = IopsLimit(iops, self._loop.time())
        self._operations_beside = operations_beside
        self._timer: asyncio.TimerHandle | None = None  # armed while the limit allows no write
        self._on_slot = on_slot
        self._given = self._begun = confirmed  # where the last block that was given, and begun, ends
        self._window_bytes = window_bytes
        self._on_group = on_group
        self._on_failed = on_failed
        self._closed: deque[ClosedBlock] = deque()  # given, not yet begun
        self._in_flight: deque[tuple[asyncio.Future[None], ClosedBlock]] = deque()
        self._barred = (-1, -1)
        self.block_bytes_allowed = block_bytes_allowed
        self.confirmed = confirmed
        self.has_failed = False

    @property
    def is_idle(self) -> bool:
        return not self._in_flight and not self._closed

    @property
    def depth(self) -> int:
        """How many writes may be under way now."""
        return self._depth.value

    @property
    def has_free_slot(self) -> bool:
        """Whether a block given now would begin now, the window apart."""
        return not self._closed and len(self._in_flight) < self._depth.value and self._timer is None

    def put(self, block: ClosedBlock) -> None:
        """Takes a block, in order of position; begins its write as soon as the window allows."""
        assert block.previous_end == self._given <= block.position, (
            self._given,
            block.previous_end,
            block.position,
        )
        self._given = block.end
        self._closed.append(block)
        self.pump()

    def spend(self, size_bytes: int) -> None:
        """Counts a write of somebody else's to the same device: a header, zeros."""
        self._limit.spend(size_bytes)

    def bar(self, start: int, end: int) -> None:
        """Blocks that touch [start, end) wait: somebody else is writing there."""
        self._barred = (start, end)

    def allow(self, block_bytes: int) -> None:
        """Blocks up to this size may begin from now on: the device header says that they may exist."""
        self.block_bytes_allowed = block_bytes
        self.pump()

    def unbar(self) -> None:
        self._barred = (-1, -1)
        self.pump()

    def pump(self) -> None:
        while self._closed and not self.has_failed and self._may_begin(self._closed[0]):
            try:
                self._begin(self._closed.popleft())
            except Exception as error:
                self._fail_soon(error)

    def _begin(self, block: ClosedBlock) -> None:
        self._check_window(block)
        block.stamp(self.confirmed)
        self._begun = block.end
        self._limit.spend(len(block.view))
        if self._operations_beside:
            self._limit.spend(self._operations_beside * IO_BYTES)
        future = self._file.write_at(self._geometry.physical(block.position), block.view)
        self._in_flight.append((future, block))
        future.add_done_callback(self._on_written)

    def _check_window(self, block: ClosedBlock) -> None:
        assert block.previous_end == self._begun, (self._begun, block.previous_end)
        if self._in_flight:
            first = self._in_flight[0][1]
            assert first.previous_end == self.confirmed, (self.confirmed, first.previous_end)
            assert block.end - self.confirmed <= self._window_bytes, (self.confirmed, block.end)
        else:
            assert block.previous_end == self.confirmed, (self.confirmed, block.previous_end)

    def _may_begin(self, block: ClosedBlock) -> bool:
        if len(block.view) > self.block_bytes_allowed or self._is_barred(block):
            return False
        if self._in_flight and (
            len(self._in_flight) >= self._depth.value or block.end > self.confirmed + self._window_bytes
        ):
            return False
        return not self._limit.rate or self._has_operation()

    def _has_operation(self) -> bool:
        """Whether the limit allows a write now; if not, the timer is armed."""
        if self._timer is None:
            wait_s = self._limit.wait_s(self._loop.time())
            if wait_s:
                self._timer = self._loop.call_later(wait_s, self._on_timer)
        return self._timer is None

    def _on_timer(self) -> None:
        self._timer = None
        if not self.has_failed:
            self.pump()
            self._on_slot()

    def _is_barred(self, block: ClosedBlock) -> bool:
        start, end = self._barred
        if start < 0:
            return False
        ring_bytes = self._geometry.ring_bytes  # the same bytes, a lap later
        return (block.position < end and start < block.end) or (
            block.position < end + ring_bytes and start + ring_bytes < block.end
        )

    def _on_written(self, future: asyncio.Future[None]) -> None:
        error = future.exception()
        if self.has_failed:
            return
        if error is not None:
            self.fail(error)
            return
        before, under_way = self.confirmed, len(self._in_flight)
        while self._in_flight and self._in_flight[0][0].done() and self._in_flight[0][0].exception() is None:
            self.confirmed = self._in_flight.popleft()[1].end
        if self.confirmed != before:
            writes = under_way - len(self._in_flight)
            self._depth.on_written(writes, self.confirmed - before, under_way, self._loop.time())
            self.pump()
            try:
                self._on_group()
            except Exception as raised:
                self.fail(raised)

    def _fail_soon(self, error: BaseException) -> None:
        """A block that never began would hold up all behind it without a word. Told in the next iteration: an
        append may be under way."""
        self.has_failed = True
        self._closed.clear()
        self.stop()
        self._loop.call_soon(self._on_failed, error)

    def fail(self, error: BaseException) -> None:
        if not self.has_failed:
            self.has_failed = True
            self._closed.clear()
            self.stop()
            self._on_failed(error)

    def stop(self) -> None:
        """No timer is left behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
