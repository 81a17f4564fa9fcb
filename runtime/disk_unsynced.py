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
import contextlib
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from millrace.runtime.clock import Clock
from millrace.runtime.disk import BlockFile, DiskFailed
from millrace.runtime.disk.driven import DrivenBlockFile
from millrace.runtime.disk.opening import (
    allocate,
    disk_error,
    open_block_descriptor,
    read_into,
    resize_descriptor,
)
from millrace.runtime.disk.posix import PosixDisk, PosixLogFile, remove_empty, write_all
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

    def write_then_read(
        self, position: int, buffer: memoryview, read_position: int, into: memoryview
    ) -> asyncio.Future[DiskFailed | None]:
        future: asyncio.Future[DiskFailed | None] = self._new_write()
        try:
            write_all(self._descriptor.fd, [buffer], position)
        except OSError as error:
            future.set_exception(disk_error(error, self._descriptor.path))
        else:
            future.set_result(read_into(self._descriptor, read_position, into))
        return future

    async def resize(self, size_bytes: int) -> None:
        resize_descriptor(self._descriptor, size_bytes, is_kept=False)
        self.size_bytes = self._descriptor.size_bytes

    async def _off_loop(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return call(*args, **kwargs)

    async def _drain(self) -> None:
        """There is never one under way."""


class UnsyncedLogFile(PosixLogFile):
    """A log file that gives up the device: everything else is the file's own."""

    async def sync(self) -> None:
        """Nothing is durable: it is written."""
        self._check()

    async def truncate(self, size_bytes: int) -> None:
        self._check()
        self._size_bytes = size_bytes
        await self._guard(os.ftruncate, self._fd, size_bytes)


class UnsyncedDisk(PosixDisk):
    def __init__(self, writes: DurableWrites | None = None) -> None:
        super().__init__(open_fd=open_unsynced, writes=writes, call=_in_place)

    async def open_block(
        self, path: str, size_bytes: int, *, direct: str = "prefer", is_shared: bool = False
    ) -> BlockFile:
        descriptor = open_block_descriptor(
            path, size_bytes, "never", open_unsynced, is_kept=False, is_shared=is_shared
        )
        return UnsyncedBlockFile(descriptor, asyncio.get_running_loop(), self._writes)

    async def open_log(self, path: str) -> UnsyncedLogFile:
        fd = await _in_place(path, os.open, path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return UnsyncedLogFile(fd, path, os.fstat(fd).st_size, _in_place)

    async def make_folder(self, path: str) -> None:
        await _in_place(path, os.makedirs, path, 0o700, exist_ok=True)

    async def remove(self, path: str) -> None:
        await _in_place(path, _unlink, path)

    async def rename(self, source: str, target: str) -> None:
        await _in_place(source, os.replace, source, target)

    async def remove_folder(self, path: str) -> None:
        await _in_place(path, remove_empty, path)

    async def reserve(self, path: str, size_bytes: int) -> None:
        fd = await _in_place(path, os.open, path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            allocate(fd, 0, size_bytes)
        except OSError as error:
            raise disk_error(error, path, size_bytes) from error
        finally:
            os.close(fd)

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


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


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
