"""Disk as the broker sees it: block files for the WAL, log files for metadata, small files, folders and a
lock.

Interfaces only. `uring_file.py` and `thread.py` implement BlockFile, `posix.py` the rest,
`tests/sim/disk.py` all of it with faults. Writes raise OSError subclasses wrapped as `DiskFull` (Exhausted),
`DiskFailed` (Unavailable) or `DiskTaken` (Fenced); after the latter two the outcome of the write is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Protocol

from millrace.runtime.disk.lock_keeper import LockKeeper
from millrace.runtime.errors import Exhausted, Fenced, Unavailable

Buffer = bytes | bytearray | memoryview
BLOCK_BYTES = 4096
UNREADABLE_BYTES_MAX = 16 << 20  # who reads around bad sectors stops there: that many are a device that fails


class DiskFull(Exhausted):
    """ENOSPC or EDQUOT; nothing is known of what was written. Arguments: path, reason, and where they are
    known the bytes that were wanted and those that were free (-1 where a limit of the user's or of one file
    is what was met)."""

    def __init__(self, path: str, reason: str, wanted_bytes: int = 0, free_bytes: int = -1) -> None:
        super().__init__(path, reason, wanted_bytes, free_bytes)
        self.path = path
        self.reason = reason
        self.wanted_bytes = wanted_bytes
        self.free_bytes = free_bytes

    def __str__(self) -> str:
        sizes = [f"{self.wanted_bytes} bytes wanted"] if self.wanted_bytes else []
        sizes += [f"{self.free_bytes} free"] if self.free_bytes >= 0 else []
        return f"{self.path}: {self.reason}" + (f" ({', '.join(sizes)})" if sizes else "")


class DiskFailed(Unavailable):
    """EIO and the like: the outcome is unknown. Terminal for the file it happened on. Arguments: path,
    reason."""

    def __str__(self) -> str:
        return ": ".join(map(str, self.args))


class DiskLocked(Fenced):
    """Another process holds the lock. Attributes: path, holder (its pid as text, words, or "")."""

    def __init__(self, path: str, holder: str = "") -> None:
        super().__init__(path, holder)
        self.path = path
        self.holder = holder

    def __str__(self) -> str:
        who = f"process {self.holder}" if self.holder.isdigit() else self.holder or "another process"
        return f"{self.path} is in use by {who}: stop it, or give this one a data directory of its own"


class DiskTaken(Fenced):
    """The device refuses our writes: another machine has reserved it. Terminal, like DiskFailed: whether the
    write that was refused or aborted has landed is unknown. Argument: path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} takes no writes from this machine: another one has reserved it"


class BlockFile(Protocol):
    """A preallocated file or raw device, written in multiples of BLOCK_BYTES at multiples of BLOCK_BYTES."""

    size_bytes: int
    is_direct: bool  # False: writes go through the page cache, synchronously
    is_new: bool  # made when it was opened: all of it reads as zeros
    is_device: bool  # keeps its size
    is_exclusive: bool  # no other process on this machine has it open; False only where that was allowed
    keeper: LockKeeper | None  # of its lock; None where that cannot be told

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]:
        """Starts one write now (plain def); the future completes when the bytes are durable. Several may be
        in flight, and they may complete in any order. `buffer` is page-aligned, and must not change or go
        until then."""
        ...

    def write_then_read(
        self, position: int, buffer: memoryview, read_position: int, into: memoryview
    ) -> asyncio.Future[DiskFailed | None]:
        """As `write_at`; and once the bytes are durable, reads as many as `into` holds, which is page-aligned
        and held until then. The read begins after the write has ended. An exception is the write's; a result
        is the read's failure, None where it went well."""
        ...

    def read_at(self, position: int, length: int) -> Awaitable[bytes | memoryview]:
        """Exactly so many bytes; where they are many, a view of memory that nobody else has."""
        ...

    async def resize(self, size_bytes: int) -> None:
        """Grows with reserved blocks that read as zeros, or cuts; durable on return. A device keeps its
        size."""
        ...

    async def reserve(self, key: int, old_key: int) -> bool:
        """Makes the device refuse the writes of every other machine, if it can; whether it does. `old_key`:
        see reserve.py. Held until `close`, or until another takes it over: then our writes fail. Raises
        DiskLocked. A file has its lock alone: False."""
        ...

    async def close(self) -> None: ...


class LogFile(Protocol):
    """An append-only file with an explicit sync. One writer."""

    @property
    def size_bytes(self) -> int: ...

    async def append(self, parts: Sequence[Buffer]) -> None:
        """Adds bytes at the end; durable only after `sync`."""
        ...

    async def sync(self) -> None: ...

    async def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file."""
        ...

    async def truncate(self, size_bytes: int) -> None:
        """Cuts the file; durable on return."""
        ...

    async def close(self) -> None: ...


class DiskLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """Paths are absolute or relative to the process; all folders given are created by `make_folder` first."""

    async def open_block(
        self, path: str, size_bytes: int, *, direct: str = "prefer", is_shared: bool = False
    ) -> BlockFile:
        """Opens or creates, for nobody else on this machine: raises DiskLocked. Where it may be shared, it is
        opened all the same, and `is_exclusive` tells. `direct`: prefer | require | never. A new file's blocks
        read as zeros and its space is reserved (DiskFull now rather than later); an existing one keeps its
        size (`size_bytes` of the result tells)."""
        ...

    async def open_log(self, path: str) -> LogFile: ...

    async def read_file(self, path: str) -> bytes | None:
        """Whole file, or None when there is none."""
        ...

    async def write_file(self, path: str, data: bytes) -> None:
        """Replaces the file atomically; durable on return (temporary file, sync, rename, sync of the
        folder)."""
        ...

    async def list_folder(self, path: str) -> list[str]:
        """Sorted names; empty when there is no such folder."""
        ...

    async def make_folder(self, path: str) -> None: ...

    async def missing_folders(self, path: str) -> list[str]:
        """Those that `make_folder` would make, the highest first."""
        ...

    async def remove_folder(self, path: str) -> None:
        """An empty one, durably; one that is not there, or holds anything, is left as it is."""
        ...

    async def remove(self, path: str) -> None:
        """A file that is not there is no error; durable on return."""
        ...

    async def rename(self, source: str, target: str) -> None:
        """Atomic; durable on return."""
        ...

    async def reserve(self, path: str, size_bytes: int) -> None:
        """Makes a file of real, allocated blocks: room that can be given back by removing it when the disk is
        full."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int:
        """Of the file system that holds `path`, or would."""
        ...

    def volume_of(self, path: str) -> int:
        """The same number for all paths that one file system holds, or would."""
        ...

    def lock(self, path: str) -> DiskLock:
        """Advisory exclusive lock held until released or the process ends. Raises DiskLocked."""
        ...

    def lock_holder(self, path: str) -> str:
        """The pid of whoever holds the lock, as text, or "". Only looks: nobody who wants the lock is kept
        from it. Of a process that it may not look into it is told that it holds the lock when it says so in
        the file and lives."""
        ...
