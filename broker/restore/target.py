"""The log directory that a restore makes: locked while it works, and taken back where nothing is restored.

    take -> look, write -> keep
                └── refused, failed or interrupted before that: everything goes that this restore made, and
                    nothing else

What an earlier restore left that was ended by force stays: it says itself that it is unfinished
(kraft/log/restored_log.py). Not here: what is written.
"""

from __future__ import annotations

import logging

from millrace.kraft.log.log_store import FOLDER
from millrace.kraft.log.restored_log import UNFINISHED
from millrace.kraft.node import lock_folder, remove_made
from millrace.runtime.disk import Disk, DiskFailed, DiskLock

log = logging.getLogger(__name__)


class RestoreTarget:
    """`keep` once it is written; `close` in any case."""

    def __init__(self, disk: Disk, log_dir: str) -> None:
        self._disk = disk
        self._log_dir = log_dir
        self._lock: DiskLock | None = None
        self._is_kept = False
        self._missing: list[str] = []
        self._names_before: list[str] = []

    async def take(self) -> None:
        """Raises DiskLocked and what making a folder raises."""
        self._missing = await self._disk.missing_folders(self._log_dir)
        self._lock, self._names_before = await lock_folder(self._disk, self._log_dir)

    def keep(self) -> None:
        self._is_kept = True

    async def close(self) -> None:
        """What cannot be removed is told, and left."""
        try:
            if not self._is_kept:
                await self._take_back()
        except DiskFailed as error:
            log.warning("restore: what it made is left: %s; remove it", error)
        finally:
            if self._lock is not None:
                self._lock.release()

    async def _take_back(self) -> None:
        if self._lock is not None:
            await self._remove_made()
        for folder in reversed(self._missing):
            if not await self._disk.missing_folders(folder):
                await self._disk.remove_folder(folder)

    async def _remove_made(self) -> None:
        disk, before = self._disk, self._names_before
        is_unfinished = UNFINISHED in await disk.list_folder(self._log_dir)
        if UNFINISHED in before and not is_unfinished:
            return  # interrupted behind the last step: what an earlier restore began is whole
        is_begun = UNFINISHED not in before and is_unfinished
        if is_begun and FOLDER in before:  # empty then, or it would have been refused
            for name in await disk.list_folder(f"{self._log_dir}/{FOLDER}"):
                await disk.remove(f"{self._log_dir}/{FOLDER}/{name}")
        await remove_made(disk, self._log_dir, before)
