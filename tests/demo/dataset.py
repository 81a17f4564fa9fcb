"""A real, varied data set that every machine has: documentation, headers, sources and binaries of what is
installed on it.

One record is a piece of a file: its key is the path, its value the bytes. Piece sizes vary from some hundred
bytes to 256 KiB by the path's hash, so that batches differ; text is cut at line ends. The order is fixed for
a machine, so that two passes read the same.
"""

from __future__ import annotations

import os
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

ROOTS = (
    Path("/usr/share/doc"),
    Path("/usr/include"),
    Path("/usr/share"),
    Path(sysconfig.get_path("stdlib")),
    Path("/usr/local/go/src"),
    Path("/usr/lib"),
)
PIECE_BYTES = (300, 1_500, 6_000, 24_000, 100_000, 262_144)


def files(roots: tuple[Path, ...] = ROOTS) -> Iterator[Path]:
    seen: dict[tuple[int, int], None] = {}
    for root in roots:
        for folder, names, leaves in os.walk(root):
            names.sort()
            for leaf in sorted(leaves):
                path = Path(folder) / leaf
                try:
                    stat = path.stat()
                except OSError:
                    continue
                identity = (stat.st_dev, stat.st_ino)
                if not path.is_symlink() and path.is_file() and stat.st_size and identity not in seen:
                    seen[identity] = None
                    yield path


def pieces(path: Path) -> Iterator[bytes]:
    size = PIECE_BYTES[zlib.crc32(str(path).encode()) % len(PIECE_BYTES)]
    try:
        with path.open("rb") as file:
            while piece := file.read(size):
                if size < 100_000 and not piece.endswith(b"\n"):
                    piece += file.readline(size)
                yield piece
    except OSError:
        return


def records(bytes_max: int, share: int, shares: int) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of every `shares`-th file from the `share`-th on, until `bytes_max` bytes of values."""
    left = bytes_max
    for number, path in enumerate(files()):
        if number % shares != share:
            continue
        key = str(path).encode()
        for piece in pieces(path):
            yield key, piece
            left -= len(piece)
            if left <= 0:
                return
