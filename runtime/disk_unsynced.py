"""The machine's disk without waiting for the device: for data that nobody keeps.

What is written is in the system's page cache on return, so a killed process loses nothing; a machine that
loses power loses everything. Of the interfaces of disk.py only the durability is left out: order, locks and
errors are the real disk's (runtime/disk/posix.py). Its calls are made in place: of the page cache each takes
microseconds, where a thread takes a hundred to hand over to. `UnsyncedCalls` is the same for a directory of
objects, which may be large: those stay with threads.
Not here: who may ask for it (broker/test_mode.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from millrace.runtime.clock import Clock
from millrace.runtime.disk import BlockFile
from millrace.runtime.disk.driven import DrivenBlockFile
from millrace.runtime.disk.opening import disk_error, open_block_descriptor
from millrace.runtime.disk.posix import PosixDisk, PosixLogFile, write_all
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.address import StoreAddress, open_store
from millrace.runtime.scheduling.yield_queue import DurableWrites, YieldQueue

P = ParamSpec("P")
T = TypeVar("T")

_DURABLE = getattr(os, "O_DSYNC", 0) | getattr(os, "O_SYNC", 0)


def open_unsynced(path: str, flags: int, mode: int) -> int:
    return os.open(path, flags & ~_DURABLE, mode)


async def _in_place(path: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return call(*args, **kwargs)
    except OSError as error:
        raise disk_error(error, path) from error


class UnsyncedBlockFile(DrivenBlockFile):
    """A write has ended when it was asked for."""

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]:
        future = self._new_write()
        try:
            write_all(self._descriptor.fd, [buffer], position)
        except OSError as error:
            future.set_exception(disk_error(error, self._descriptor.path))
        else:
            future.set_result(None)
        return future

    async def _off_loop(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return call(*args, **kwargs)

    async def _drain(self) -> None:
        """There is never one under way."""


class UnsyncedLogFile:
    """A log file whose `sync` gives up the device: everything else is the file's own."""

    def __init__(self, file: PosixLogFile) -> None:
        self.append = file.append
        self.read_at = file.read_at
        self.truncate = file.truncate
        self.close = file.close
        self._file = file

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    async def sync(self) -> None:
        """Nothing is durable: it is written."""


class UnsyncedDisk(PosixDisk):
    def __init__(self, writes: DurableWrites | None = None) -> None:
        super().__init__(open_fd=open_unsynced, writes=writes, call=_in_place)

    async def open_block(self, path: str, size_bytes: int, *, direct: str = "prefer") -> BlockFile:
        descriptor = open_block_descriptor(path, size_bytes, "never", open_unsynced)
        return UnsyncedBlockFile(descriptor, asyncio.get_running_loop(), self._writes)

    async def open_log(self, path: str) -> UnsyncedLogFile:  # type: ignore[override]
        return UnsyncedLogFile(await super().open_log(path))

    async def write_file(self, path: str, data: bytes) -> None:
        """In one step, so no other task sees half of it: these files are small, and the page cache takes them
        at once."""
        temporary = path + ".tmp"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                write_all(fd, [data], 0)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except OSError as error:
            raise disk_error(error, path) from error


class UnsyncedCalls:
    """`os`, as a directory of objects uses it, without its `fsync` and without direct I/O."""

    open = staticmethod(os.open)
    pwritev = staticmethod(os.pwritev)
    pread = staticmethod(os.pread)
    preadv = staticmethod(os.preadv)
    rename = staticmethod(os.rename)
    link = staticmethod(os.link)
    fstatvfs = staticmethod(os.fstatvfs)

    @staticmethod
    def fsync(fd: int, /) -> None:
        """Nothing is durable: it is written."""


async def open_unsynced_store(address: StoreAddress, clock: Clock, yield_queue: YieldQueue) -> ObjectStore:
    """The store that an address names; a directory of objects without waiting for the device."""
    if address.scheme != "file":
        return await open_store(address, clock, yield_queue)
    from millrace.runtime.objectstore.local import LocalObjectStore

    return await LocalObjectStore.open(address.target, UnsyncedCalls(), writes=yield_queue.writes)
