"""What a first start needs of its disks: a start that could not go on, or whose objects would never find
room, is refused before it makes anything.

    log.dirs          METADATA_BYTES, and the reserve for a full disk (kraft/log/reserve.py)
    data in a folder  what such a folder leaves free (KEPT_FREE_BYTES), and as much as the log may hold, up to
                      OBJECTS_BYTES
    log in a file     its whole size, which is taken at once (wal/block/capacity.py)

Needs of one file system are added. The folder of a log's file is made, as others are, and tried: where it
takes no file the bucket would be named before that is seen. Not here: later starts, which take what there is;
taking the folder back (first_start.py).
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterator

from millrace.broker.config import BrokerSettings
from millrace.runtime.disk import Disk, DiskFull
from millrace.runtime.objectstore.folder import KEPT_FREE_BYTES
from millrace.wal.kind import WalPlace
from millrace.wal.opening import check_room, kind_of

METADATA_BYTES = 2 << 20
OBJECTS_BYTES = 64 << 20
TRIAL = ".trial"


async def check_first_room(disk: Disk, settings: BrokerSettings, wal: WalPlace) -> None:
    """Raises DiskFull, and DiskFailed for a folder that takes no file. Makes nothing but the folder of the
    log's file."""
    needs: defaultdict[int, int] = defaultdict(int)
    for path, size_bytes in _needs(settings):
        needs[disk.volume_of(path)] += size_bytes
    await check_room(wal, needs[disk.volume_of(settings.wal.target)] if settings.wal.scheme == "file" else 0)
    for path, _ in _needs(settings):
        wanted_bytes, free_bytes = needs[disk.volume_of(path)], disk.free_bytes(path)
        if wanted_bytes > free_bytes:
            raise DiskFull(path, f"{os.strerror(errno.ENOSPC)} for a new cluster", wanted_bytes, free_bytes)
    file_of = kind_of(settings.wal).file_of
    if file_of is not None:
        await _try_folder_of(disk, file_of(settings.wal))


async def _try_folder_of(disk: Disk, path: str) -> None:
    """Nothing is tried where the file, or device, is there."""
    if not await disk.missing_folders(path):
        return
    await disk.make_folder(path.rpartition("/")[0] or "/")
    try:
        await disk.write_file(f"{path}{TRIAL}", b"")
    finally:
        await disk.remove(f"{path}{TRIAL}")


def _needs(settings: BrokerSettings) -> Iterator[tuple[str, int]]:
    yield settings.controller.log_dir, settings.controller.reserve_bytes + METADATA_BYTES
    if settings.data.scheme == "file":
        yield settings.data.target, KEPT_FREE_BYTES + min(settings.wal_settings.capacity_bytes, OBJECTS_BYTES)
