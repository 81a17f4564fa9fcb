"""How recovery reads the ring: one read ahead, and block by block around a place that the device cannot read.

A block that cannot be read is given as zeros and named: the scan decides whether it matters, as for one that
rotted. It is asked for once, and what was read around it is kept, for the scan comes back to it. Where more
than UNREADABLE_BYTES_MAX, or a quarter of the ring, cannot be read it is not a bad sector, and the device's
own error is raised. Not here: what a block means.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from millrace.runtime.disk import UNREADABLE_BYTES_MAX, BlockFile, DiskFailed
from millrace.wal.block.layout import BLOCK_BYTES, Geometry

log = logging.getLogger(__name__)


class RingReads:
    """One pass over a ring."""

    def __init__(self, file: BlockFile, geometry: Geometry) -> None:
        self._file = file
        self._geometry = geometry
        self._place: tuple[int, int] | None = None
        self._read: asyncio.Future[bytes] | None = None
        self._around: tuple[int, bytes] = (
            0,
            b"",
        )  # position and bytes of the last piece that was read block by block
        self._unreadable: dict[int, None] = {}  # positions
        self._unreadable_max = min(UNREADABLE_BYTES_MAX, geometry.ring_bytes // 4) // BLOCK_BYTES

    def begin(self, place: tuple[int, int] | None) -> None:
        """Begins to read a position and length that will probably be wanted next, so that the device works
        while records are looked at."""
        if place is not None:
            self._place = place
            self._read = asyncio.ensure_future(
                self._file.read_at(self._geometry.physical(place[0]), place[1])
            )

    async def take(self, place: tuple[int, int]) -> tuple[bytes, Sequence[int]]:
        """The bytes there, begun before or not, or the first of them; and the positions of blocks among them
        that cannot be read. Raises DiskFailed where there are too many."""
        start, data = self._around
        if start <= place[0] < start + len(data):
            return self._known(place[0], data[place[0] - start :][: place[1]])
        if self._read is None or self._place != place:
            self.drop()
            self.begin(place)
        assert self._read is not None
        read, self._read = self._read, None
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
        if self._read is not None:
            self._read.add_done_callback(
                lambda read: read.cancelled() or read.exception()
            )  # nobody wants it any more
            self._read.cancel()
            self._read = None
