"""A bucket in a directory, of which a part is out of reach for a while."""

from __future__ import annotations

from pathlib import Path


class Barred:
    """A folder of the bucket that takes nothing, and gives nothing, while it is barred: a link to itself."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / "bucket" / name
        self._away = folder / f"barred-{name.replace('/', '-')}"

    def bar(self) -> None:
        self._path.rename(self._away)
        self._path.symlink_to(self._path)

    def lift(self) -> None:
        self._path.unlink()
        self._away.rename(self._path)
