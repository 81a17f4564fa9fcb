"""A bucket in a directory, of which a part is out of reach for a while."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of renameat2(2)


class Barred:
    """A folder of the bucket that takes nothing, and gives nothing, while it is barred: a link to itself. The
    two change places in one step, for brokers make folders that they miss."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / "bucket" / name
        self._away = folder / f"barred-{name.replace('/', '-')}"

    def bar(self) -> None:
        self._away.symlink_to(self._path)
        self._exchange()

    def lift(self) -> None:
        self._exchange()
        self._away.unlink()

    def _exchange(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        paths = os.fsencode(self._path), os.fsencode(self._away)
        if libc.renameat2(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(self._path))
