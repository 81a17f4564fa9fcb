"""What a start that is refused takes back: folders that it made, and a metadata log that nobody knows of yet.

    note the folders that are missing -> open stores, WAL, metadata log
        -> kept: the bucket is about to name the cluster
                       └── refused before that: everything goes that this start made, and nothing else

What was there before stays, and so does a folder that holds anything by now. From the moment on at which the
bucket may name the cluster the metadata log is all that knows of it: it stays, and the next start goes on
where this one ended. Not here: removing the log (kraft/node.py, under its lock), what makes folders.
"""

from __future__ import annotations

import logging

from millrace.broker.config import BrokerSettings
from millrace.runtime.disk import Disk, DiskFailed
from millrace.runtime.objectstore.folder import NEW_FOLDER
from millrace.wal.opening import kind_of

log = logging.getLogger(__name__)


class FirstStart:
    """`is_kept`: nothing is taken back any more, or nothing was made."""

    def __init__(self, disk: Disk) -> None:
        self.is_kept = False
        self._disk = disk
        self._missing: dict[str, None] = {}

    async def note(self, settings: BrokerSettings) -> None:
        """Before anything is made: which folders this start may have to make."""
        folders = [settings.controller.log_dir]
        if settings.data.scheme == "file":
            folders.append(f"{settings.data.target}/{NEW_FOLDER}")
        if settings.wal.scheme == "file":
            is_of_objects = kind_of(settings.wal).file_of is None
            folders.append(
                f"{settings.wal.target}/{NEW_FOLDER}"
                if is_of_objects
                else settings.wal.target.rpartition("/")[0]
            )
        for folder in folders:
            self._missing |= dict.fromkeys(await self._disk.missing_folders(folder))

    async def take_back(self) -> None:
        """Behind the end of all that was opened: removes the folders that were missing and are empty now."""
        if self.is_kept:
            return
        for folder in sorted(self._missing, key=len, reverse=True):
            if await self._disk.missing_folders(folder):
                continue  # never made; a disk that takes no changes refuses to remove what is not there, too
            try:
                await self._disk.remove_folder(folder)
            except DiskFailed as error:
                log.warning(
                    "first start: a folder that this start made is left: %s; remove it if it is empty", error
                )
