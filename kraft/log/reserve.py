"""Reserve: room beside the metadata log that is given back when the disk is full.

A full disk must still take deletions, since they are what makes room. So a file of real blocks lies beside
the log; when an append finds no room, or another write without which a start cannot go on, the file goes and
the write is tried again. Until it could be made anew, commands that grow the log are refused. Not here: which
commands those are (commands.py).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from millrace.runtime.disk import Disk, DiskFull

log = logging.getLogger(__name__)
FILE: Final = "metadata.reserve"


class Reserve:
    def __init__(self, disk: Disk, log_dir: str, size_bytes: int) -> None:
        self.path = f"{log_dir}/{FILE}"
        self.is_held = False
        self._disk = disk
        self._size_bytes = size_bytes

    async def hold(self) -> bool:
        """Makes the file unless the disk is too full for it; tells whether it is there."""
        try:
            await self._disk.reserve(self.path, self._size_bytes)
            self.is_held = True
        except DiskFull:
            await self._disk.remove(self.path)
            self.is_held = False
        return self.is_held

    async def hold_again(self) -> None:
        """Once there is room for it and for as much again, so that it does not come and go."""
        if (
            not self.is_held
            and self._disk.free_bytes(self.path) >= 2 * self._size_bytes
            and await self.hold()
        ):
            log.warning("the disk of the metadata log has room again: all commands are taken")

    async def at_need(self, write: Callable[[], Awaitable[None]]) -> None:
        """Carries the write out, once more without the reserve where the disk was full. Raises DiskFull when
        there was none left to give up."""
        try:
            await write()
        except DiskFull:
            if not await self.give_up():
                raise
            await write()

    async def give_up(self) -> bool:
        """Removes the file; False when it was gone already."""
        if not self.is_held:
            return False
        self.is_held = False
        await self._disk.remove(self.path)
        log.warning("the disk of the metadata log is full: only deletions are taken until there is room")
        return True
