"""Carries closed blocks to the file, a few writes at a time, and confirms them in order.

It decides nothing about batching. Writes may complete in any order; `confirmed` moves only over a run of completed
ones, so everything below it is durable. The first failure is the last word: `on_failed` is called once and nothing is
confirmed after it, since the outcome of that write is unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from millrace.runtime.disk import BlockFile
from millrace.wal.block.batcher import ClosedBlock
from millrace.wal.block.layout import Geometry


class BlockWriter:
    def __init__(
        self,
        file: BlockFile,
        geometry: Geometry,
        confirmed: int,
        *,
        writes_in_flight: int,
        window_bytes: int,
        block_bytes_allowed: int,
        on_group: Callable[[], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._file = file
        self._geometry = geometry
        self._writes_max = writes_in_flight
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
    def has_free_slot(self) -> bool:
        """Whether a block given now would begin now, the window apart."""
        return not self._closed and len(self._in_flight) < self._writes_max

    def put(self, block: ClosedBlock) -> None:
        """Takes a block, in order of position; begins its write as soon as the window allows."""
        self._closed.append(block)
        self.pump()

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
            block = self._closed.popleft()
            block.stamp(self.confirmed)
            future = self._file.write_at(self._geometry.physical(block.position), block.view)
            self._in_flight.append((future, block))
            future.add_done_callback(self._on_written)

    def _may_begin(self, block: ClosedBlock) -> bool:
        if len(block.view) > self.block_bytes_allowed or self._is_barred(block):
            return False
        if not self._in_flight:
            return True
        return len(self._in_flight) < self._writes_max and block.end <= self.confirmed + self._window_bytes

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
        before = self.confirmed
        while self._in_flight and self._in_flight[0][0].done() and self._in_flight[0][0].exception() is None:
            self.confirmed = self._in_flight.popleft()[1].end
        if self.confirmed != before:
            self.pump()
            self._on_group()

    def fail(self, error: BaseException) -> None:
        if not self.has_failed:
            self.has_failed = True
            self._closed.clear()
            self._on_failed(error)
