"""A folder that a store is tried in, so that it is afterwards as it was: what was there is noted before, and
what was made is removed after.

The store removes its objects; folders it keeps, since a later put may need them (folder.py). Here those
go that were not there before: of the trial's keys, with what a call that was cancelled put there after all,
of unfinished files, and the folder itself with what above it was made for it. One that somebody has put
something into meanwhile stays. Blocking.
"""

from __future__ import annotations

import os
from contextlib import suppress

from millrace.runtime.objectstore.folder import NEW_FOLDER


class FolderTrial:
    """Made before the store is opened. `made` are the folders that will have been made for it, the highest
    first."""

    def __init__(self, root: str, prefix: str) -> None:
        self._root = os.path.abspath(root)
        self._prefix = prefix.rstrip("/")
        self._has_new = os.path.lexists(f"{self._root}/{NEW_FOLDER}")
        self.made: list[str] = []
        missing = self._root
        while not os.path.lexists(missing):
            self.made.insert(0, missing)
            missing = os.path.dirname(missing)

    def clean(self) -> list[str]:
        """After the store was closed; gives what is left."""
        tried: list[str] = []
        for path, _, files in os.walk(f"{self._root}/{self._prefix}", topdown=False):
            for file in files:
                with suppress(OSError):
                    os.unlink(f"{path}/{file}")
            tried.append(path)
        if not self._has_new:
            tried.append(f"{self._root}/{NEW_FOLDER}")
        tried += reversed(self.made)
        return [path for path in tried if not _is_gone(path)]


def _is_gone(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
