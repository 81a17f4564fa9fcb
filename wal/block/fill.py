"""Writes zeros ahead of the log on its first lap, so that the log meets extents that were written before.

A file that was only preallocated is as large and as safe; its first write to each extent is slower, for the
file system must note that it is no longer empty. Filling all of it before the first start would make that
start wait for seconds. So a task keeps a stretch ahead of the log filled, and steps aside where the log
catches up with it: a block is never written where zeros are on their way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millrace.runtime.disk.aligned import Arena
from millrace.wal.block.layout import Geometry
from millrace.wal.block.writer import BlockWriter, Writable

_CHUNK_BYTES = 1024 * 1024


def plan_fill(
    geometry: Geometry, filled_bytes: int, tail: int, stop: int, ahead_bytes: int
) -> tuple[int, int] | None:
    """Position and length of the next zeros, or None when enough lies ahead. `stop` is where live records
    begin again."""
    offset = tail % geometry.ring_bytes
    start = tail - offset + max(filled_bytes, offset)
    end = min(start + _CHUNK_BYTES, geometry.lap_end(tail), stop)
    if start >= min(end, tail + ahead_bytes):
        return None
    return start, end - start


class ZeroFill:
    """`filled_bytes`: this much of the ring, from its start, was written at least once."""

    def __init__(
        self,
        file: Writable,
        geometry: Geometry,
        writer: BlockWriter,
        filled_bytes: int,
        ahead_bytes: int,
        reach: Callable[[], tuple[int, int]],
    ) -> None:
        """`reach()` gives the end of what was appended, the open block included, and where live records begin
        again."""
        self.filled_bytes = filled_bytes
        self._file = file
        self._geometry = geometry
        self._writer = writer
        self._ahead_bytes = ahead_bytes
        self._reach = reach
        self._wake = asyncio.Event()
        self._wake_at = 0
        self._is_stopping = False

    def on_grown(self, tail: int) -> None:
        if tail >= self._wake_at:
            self._wake.set()

    def on_trimmed(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """`run` ends after the write that is under way."""
        self._is_stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Ends when the ring is filled, or at a stop."""
        zeros = Arena(_CHUNK_BYTES).view
        ring_bytes = self._geometry.ring_bytes
        first_lap = self._reach()[0] // ring_bytes
        while self.filled_bytes < ring_bytes and not self._is_stopping:
            tail, stop = self._reach()
            if tail // ring_bytes != first_lap:
                self.filled_bytes = ring_bytes  # the log has been everywhere itself
                return
            planned = plan_fill(self._geometry, self.filled_bytes, tail, stop, self._ahead_bytes)
            if planned is None:
                self._wake_at = tail + self._ahead_bytes // 8
                self._wake.clear()
                await self._wake.wait()
                continue
            start, length = planned
            # The bar is lifted only by the write's end: a cancelled wait leaves the zeros on their way.
            self._writer.bar(start, start + length)
            self._writer.spend(length)
            await self._file.write_at(self._geometry.physical(start), zeros[:length])
            self._writer.unbar()
            self.filled_bytes = start % self._geometry.ring_bytes + length
