"""Block file on one dedicated writer thread: the way where io_uring is not to be had.

Writes, and reads that follow one, are done one after the other in the order they were asked for; the thread
spends its life in system calls that release the interpreter. Completions come back through
`call_soon_threadsafe`, several in one wake-up when they pile up. So does the thread's end, which a close
waits for: it must not need another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import queue
from collections import deque

from millrace.runtime.disk import DiskFailed
from millrace.runtime.disk.apart import start_apart
from millrace.runtime.disk.driven import DrivenBlockFile
from millrace.runtime.disk.opening import BlockDescriptor, disk_error, read_into
from millrace.runtime.scheduling.yield_queue import DurableWrites

_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: O_DSYNC stops at the drive's cache

_Read = tuple[int, memoryview]
_Write = tuple[int, memoryview, _Read | None, "asyncio.Future[DiskFailed | None]"]


class ThreadBlockFile(DrivenBlockFile):
    def __init__(
        self, descriptor: BlockDescriptor, loop: asyncio.AbstractEventLoop, writes: DurableWrites
    ) -> None:
        super().__init__(descriptor, loop, writes)
        self._asked: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        # the write's failure, or else the read's
        self._done: deque[
            tuple[asyncio.Future[DiskFailed | None], BaseException | None, DiskFailed | None]
        ] = deque()
        self._ended: asyncio.Future[None] = loop.create_future()  # behind all that was done
        start_apart(self._run, "block-writer")

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]:
        return self._ask(position, buffer, None)  # type: ignore[return-value]  # without a read, None

    def write_then_read(
        self, position: int, buffer: memoryview, read_position: int, into: memoryview
    ) -> asyncio.Future[DiskFailed | None]:
        return self._ask(position, buffer, (read_position, into))

    def _ask(
        self, position: int, buffer: memoryview, read: _Read | None
    ) -> asyncio.Future[DiskFailed | None]:
        future: asyncio.Future[DiskFailed | None] = self._new_write()
        self._writes.begin()
        self._asked.put((position, buffer, read, future))
        return future

    async def _drain(self) -> None:
        self._asked.put(None)
        await self._ended

    def _run(self) -> None:
        try:
            while self._write_next():
                pass
        finally:
            with contextlib.suppress(RuntimeError):  # the loop was closed under us
                self._loop.call_soon_threadsafe(self._on_end)

    def _on_end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _write_next(self) -> bool:
        """One write; a frame of its own, so that no view of the buffer outlives it."""
        write = self._asked.get()
        if write is None:
            return False
        position, buffer, read, future = write
        error: BaseException | None = None
        unread: DiskFailed | None = None
        try:
            self._write(position, buffer)
            if read is not None:
                unread = read_into(self._descriptor, *read)
        except OSError as failure:
            error = disk_error(failure, self._descriptor.path)
        self._done.append((future, error, unread))
        try:
            self._loop.call_soon_threadsafe(self._complete)
        except RuntimeError:
            return False  # the loop was closed under us: nobody waits any more
        return True

    def _write(self, position: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            count = os.pwrite(self._descriptor.fd, buffer[done:], position + done)
            if count <= 0:
                raise OSError("a write took nothing")
            done += count
        if _FULL_SYNC is not None:
            fcntl.fcntl(self._descriptor.fd, _FULL_SYNC)

    def _complete(self) -> None:
        while self._done:
            future, error, unread = self._done.popleft()
            self._writes.end()
            if future.done():
                continue
            if error is None:
                future.set_result(unread)
            else:
                future.set_exception(error)
