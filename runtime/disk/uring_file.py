"""Block file over io_uring: a write is one system call on the loop's thread, its completion one eventfd
wake-up.

Chosen at open where the kernel allows it; `thread.py` is the fallback with the same promises. Durability
is the descriptor's (O_DSYNC). A buffer is held here until its write has completed.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque

from millrace.runtime.disk import DiskFailed
from millrace.runtime.disk.driven import DrivenBlockFile
from millrace.runtime.disk.opening import BlockDescriptor, disk_error
from millrace.runtime.disk.uring import Uring, address_of
from millrace.runtime.scheduling.yield_queue import DurableWrites

_ENTRIES = 64

_Write = tuple[int, memoryview, "asyncio.Future[None]"]


class UringBlockFile(DrivenBlockFile):
    def __init__(
        self, descriptor: BlockDescriptor, loop: asyncio.AbstractEventLoop, writes: DurableWrites
    ) -> None:
        """Raises UringRefused (an OSError); the descriptor then stays open and the caller's."""
        self._ring = Uring(_ENTRIES)
        super().__init__(descriptor, loop, writes)
        self._fd = descriptor.fd
        self._outstanding: dict[int, _Write] = {}
        self._waiting: deque[_Write] = deque()
        self._tag = 0
        self._drained: asyncio.Future[None] | None = None
        loop.add_reader(self._ring.eventfd, self._reap)

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]:
        future = self._new_write()
        if len(self._outstanding) < _ENTRIES:
            self._submit(position, buffer, future)
        else:
            self._waiting.append((position, buffer, future))
        return future

    async def _drain(self) -> None:
        while self._outstanding:
            self._drained = self._loop.create_future()
            await self._drained
        self._loop.remove_reader(self._ring.eventfd)
        self._ring.close()

    def _submit(self, position: int, buffer: memoryview, future: asyncio.Future[None]) -> None:
        tag = self._tag = self._tag + 1
        self._outstanding[tag] = (position, buffer, future)
        try:
            self._ring.write(self._fd, position, address_of(buffer), len(buffer), tag)
            self._writes.begin()
        except OSError as error:
            del self._outstanding[tag]
            if not future.done():  # whoever waited in line may have gone
                future.set_exception(disk_error(error, self._descriptor.path))

    def _reap(self) -> None:
        for tag, result in self._ring.reap():
            _, buffer, future = self._outstanding.pop(tag)
            self._writes.end()
            if future.done():
                continue
            if result == len(buffer):
                future.set_result(None)
            elif result < 0:
                failure = OSError(-result, os.strerror(-result))
                future.set_exception(disk_error(failure, self._descriptor.path))
            else:
                future.set_exception(
                    DiskFailed(self._descriptor.path, f"short write: {result} of {len(buffer)} bytes")
                )
        while self._waiting and len(self._outstanding) < _ENTRIES:
            self._submit(*self._waiting.popleft())
        drained = self._drained
        if drained is not None and not self._outstanding:
            self._drained = None
            drained.set_result(None)
