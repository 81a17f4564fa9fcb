"""How large a block WAL is where nobody says it: as it is, or, where there is none yet, by the room on its
disk.

    new, in a file      the largest power of two that is no more than a tenth of the free bytes, from 64 MiB
                        to 2 GiB
    new, on a device    all of it, up to 2 GiB
    made beforehand     a file of 64 MiB or more that no log was made in yet: all of it, up to 2 GiB, and it
                        is told, for a start may have been killed while it made a larger one
    not new             as it is: what was chosen once stays, however much is free by now

A shorter file without a log is what is left of making one: where the file system cannot reserve space the
file grows while zeros are written. It is made as a new one is. Who wants a log as small gives its capacity.

Not here: making the file (device.py), what was said (kind.py). The rule stands in docs/settings.md at
s3.wal.capacity.
"""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import replace
from typing import Final

from millrace.protocol.dataclass import dataclass
from millrace.runtime.disk import Disk, DiskFull
from millrace.wal.block.device import open_present, read_header
from millrace.wal.block.layout import RING_START
from millrace.wal.config import MIB, BlockWalSettings

log = logging.getLogger(__name__)
LEAST_BYTES: Final = 64 * MIB
MOST_BYTES: Final = 2048 * MIB
PARTS: Final = 10  # of the free bytes, one goes to the log


def choose_capacity(free_bytes: int) -> int:
    """Of a new log in a file on a disk with so much free. It may be more than is free: then there is no room
    for a log."""
    part_bytes = max(free_bytes // PARTS, 1)
    return max(LEAST_BYTES, min(MOST_BYTES, 1 << part_bytes.bit_length() - 1))


@dataclass(frozen=True, slots=True)
class Settled:
    settings: BlockWalSettings
    free_bytes: int | None  # of the disk that a new log's file is to lie on
    is_beforehand: bool = False  # a new log in a file or device that is there, which says its size

    def note(self, path: str) -> None:
        """Tells of a new log, loudly where it is a small one that nobody asked for."""
        if self.free_bytes is None and not self.is_beforehand:
            return
        size_bytes, is_given = self.settings.capacity_bytes, self.settings.is_capacity_given
        log.log(
            logging.INFO if is_given or size_bytes == MOST_BYTES else logging.WARNING,
            "WAL %s is new: it takes %d bytes (%d MiB) %s%s",
            path,
            size_bytes,
            size_bytes // MIB,
            "that are there without a log"
            if self.free_bytes is None
            else f"at once, of {self.free_bytes} that are free there",
            "" if is_given else "; s3.wal.capacity gives it another size",
        )


async def settle_capacity(
    disk: Disk, path: str, settings: BlockWalSettings, beside_bytes: int = 0
) -> Settled:
    """With the capacity that holds at this place. Changes nothing. Raises DiskFull where a new log has no
    room, or leaves less than `beside_bytes` to what else goes to its disk, and as opening a log does."""
    file = await open_present(disk, path, is_shared=settings.is_by_claims)
    if file is not None:
        try:
            header = await read_header(file)
        finally:
            await file.close()
        if header is not None:
            return Settled(_or_given(settings, header.capacity_bytes), None)
        is_kept = file.is_device or settings.is_capacity_given
        if file.size_bytes >= (RING_START if is_kept else LEAST_BYTES):
            settings = _or_given(settings, min(MOST_BYTES, file.size_bytes))
            return Settled(settings, None, is_beforehand=not settings.is_capacity_given)
    free_bytes = disk.free_bytes(path)
    settings = _or_given(settings, choose_capacity(free_bytes))
    size_bytes = settings.capacity_bytes
    if size_bytes + beside_bytes > free_bytes:
        parts = (
            f" for {size_bytes} bytes of log and {beside_bytes} of metadata and objects"
            if beside_bytes
            else ""
        )
        raise DiskFull(path, os.strerror(errno.ENOSPC) + parts, size_bytes + beside_bytes, free_bytes)
    return Settled(settings, free_bytes)


def _or_given(settings: BlockWalSettings, chosen_bytes: int) -> BlockWalSettings:
    return settings if settings.is_capacity_given else replace(settings, capacity_bytes=chosen_bytes)
