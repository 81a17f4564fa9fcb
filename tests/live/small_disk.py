"""A file system that is easily filled: an ext4 image on a loop mount, for which one must be root.

Where mounting is not possible the caller is given the reason, for it to print. What is freed on it is free at
once: no root reserve.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType

from tests.patience import PATIENCE_S


class CannotMount(Exception):
    """Why there is no small disk here."""


class SmallDisk:
    """`with SmallDisk(folder, 128 << 20) as disk: ... disk.path`. Unmounted at the end; nothing of it remains
    but the image."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.path = folder / "mount"
        self._image = folder / "image"
        self._size_bytes = size_bytes

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def __enter__(self) -> SmallDisk:
        self.path.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(self._size_bytes)
        _run("mkfs.ext4", "-q", "-m", "0", str(self._image))
        _run("mount", "-o", "loop", str(self._image), str(self.path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _run("umount", "-l", str(self.path))  # what a killed process had open goes a moment after it
        self._image.unlink()


def _run(*words: str) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    try:
        done = subprocess.run(
            words, capture_output=True, timeout=PATIENCE_S, check=False, env={**os.environ, "PATH": path}
        )
    except OSError as error:
        raise CannotMount(f"{words[0]}: {error}") from None
    if done.returncode:
        raise CannotMount(f"{words[0]}: {done.stderr.decode().strip() or done.returncode}")
