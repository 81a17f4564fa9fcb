"""A file or device that is looked at and not touched: read-only, and told whether a process has it open for
writing. Blocking; for commands."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from types import TracebackType

from millrace.runtime.disk import BLOCK_BYTES, UNREADABLE_BYTES_MAX, DiskFailed
from millrace.runtime.disk.opening import disk_error


class PeekFile:
    """`with PeekFile(path) as file`. Raises DiskFailed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._unreadable: dict[int, None] = {}  # places of blocks
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.size_bytes = os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            raise disk_error(error, path) from error

    def is_locked(self) -> bool:
        """Whether an owner has it open now. Nobody is kept out by the question."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return False

    def read_at(self, position: int, length: int) -> bytes:
        """Exactly `length` bytes; a file that ends before that is damaged. Raises DiskFailed for that, and
        where the system cannot read."""
        found = bytearray()
        while len(found) < length:
            try:
                piece = os.pread(self._fd, length - len(found), position + len(found))
            except OSError as error:
                raise disk_error(error, self.path) from error
            if not piece:
                raise DiskFailed(self.path, "ends too early")
            found += piece
        return bytes(found)

    def read_around(self, position: int, length: int) -> tuple[bytes, Sequence[int]]:
        """As `read_at`, with zeros for blocks that the device cannot read, and their places. Both in whole
        blocks. Raises DiskFailed where there are too many of them."""
        try:
            return self.read_at(position, length), ()
        except DiskFailed:
            places = range(position, position + length, BLOCK_BYTES)
            data = b"".join(self._block_at(at) for at in places)
            return data, [at for at in places if at in self._unreadable]

    def _block_at(self, at: int) -> bytes:
        if at not in self._unreadable:
            try:
                return self.read_at(at, BLOCK_BYTES)
            except DiskFailed:
                self._unreadable[at] = None
                if len(self._unreadable) * BLOCK_BYTES > UNREADABLE_BYTES_MAX:
                    raise
        return bytes(BLOCK_BYTES)

    def __enter__(self) -> PeekFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
