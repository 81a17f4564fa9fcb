"""How recovery reads the ring: some reads ahead, and block by block around a place that the device cannot
read.

A block that cannot be read is given as zeros and named: the scan decides whether it matters, as for one that
rotted. It is asked for once, and what was read around it is kept, for the scan comes back to it. Where more
than UNREADABLE_BYTES_MAX, or a quarter of the ring, cannot be read it is not a bad sector, and the device's
own error is raised. Not here: what a block means.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence

from millrace.runtime.disk import UNREADABLE_BYTES_MAX, BlockFile, DiskFailed
from millrace.wal.block.layout import BLOCK_BYTES, Geometry

log = logging.getLogger(__name__)


class RingReads:
    """One pass over a ring."""

    def __init__(self, file: BlockFile, geometry: Geometry) -> None:
        self._file = file
        self._geometry = geometry
        # In the order in which they are wanted, most likely: position and length, and the bytes there.
        self._ahead: deque[tuple[tuple[int, int], asyncio.Future[bytes | memoryview]]] = deque()
        self._around: tuple[int, bytes] = (
            0,
            b"",
        )  # position and bytes of the last piece that was read block by block
        self._unreadable: dict[int, None] = {}  # positions
        self._unreadable_max = min(UNREADABLE_BYTES_MAX, geometry.ring_bytes // 4) // BLOCK_BYTES

    def begin(self, places: Iterable[tuple[int, int]]) -> None:
        """Begins to read positions and lengths that will probably be wanted next, those that are not begun,
        so that the device works while records are looked at. Of several at a time it gives its reader a
        larger share beside others' writes."""
        begun = [place for place, _ in self._ahead]
        for place in places:
            if place not in begun:
                self._begin(place)

    def _begin(self, place: tuple[int, int]) -> None:
        read = self._file.read_at(self._geometry.physical(place[0]), place[1])
        self._ahead.append((place, asyncio.ensure_future(read)))

    async def take(self, place: tuple[int, int]) -> tuple[bytes | memoryview, Sequence[int]]:
        """The bytes there, begun before or not, or the first of them; and the positions of blocks among them
        that cannot be read. Raises DiskFailed where there are too many."""
        start, data = self._around
        if start <= place[0] < start + len(data):
            return self._known(place[0], data[place[0] - start :][: place[1]])
        if not self._ahead or self._ahead[0][0] != place:
            self.drop()
            self._begin(place)
        _, read = self._ahead.popleft()
        try:
            return await read, ()
        except DiskFailed as error:
            log.warning("a read of the WAL failed, and is repeated block by block: %s", error)
            return await self._take_around(*place)

    async def _take_around(self, start: int, length: int) -> tuple[bytes, Sequence[int]]:
        found = bytearray()
        for position in range(start, start + length, BLOCK_BYTES):
            at = self._geometry.physical(position)
            try:
                found += await self._file.read_at(at, BLOCK_BYTES)
            except DiskFailed as error:
                self._unreadable[position] = None
                if len(self._unreadable) > self._unreadable_max:
                    raise
                log.warning(
                    "the WAL's block at position %d (byte %d) cannot be read: %s", position, at, error
                )
                found += bytes(BLOCK_BYTES)
        self._around = start, bytes(found)
        return self._known(*self._around)

    def _known(self, start: int, data: bytes) -> tuple[bytes, Sequence[int]]:
        return data, [at for at in self._unreadable if start <= at < start + len(data)]

    def drop(self) -> None:
        """Nobody wants what was begun any more."""
        for _, read in self._ahead:
            read.add_done_callback(lambda done: done.cancelled() or done.exception())
            read.cancel()
        self._ahead.clear()
