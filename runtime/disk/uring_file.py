"""Block file over io_uring: a write is one system call on the loop's thread, its completion one eventfd
wake-up. A read that follows it is linked behind it and costs no system call of its own.

Chosen at open where the kernel allows it; `thread.py` is the fallback with the same promises. Durability
is the descriptor's (O_DSYNC). A buffer is held here until what was asked for with it has completed.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from typing import Any, Final

from millrace.runtime.disk import DiskFailed
from millrace.runtime.disk.driven import DrivenBlockFile
from millrace.runtime.disk.opening import BlockDescriptor, disk_error
from millrace.runtime.disk.uring import Uring, address_of
from millrace.runtime.scheduling.yield_queue import DurableWrites

_ENTRIES: Final = 64


class _Operation:
    """A write, and the read that follows it, if there is one."""

    __slots__ = ("buffer", "future", "into", "is_read_asked", "position", "read_position")

    def __init__(
        self,
        position: int,
        buffer: memoryview,
        future: asyncio.Future[Any],
        read_position: int = 0,
        into: memoryview | None = None,
    ) -> None:
        self.position = position
        self.buffer = buffer
        self.future = future
        self.read_position = read_position
        self.into = into
        self.is_read_asked = False

    @property
    def entries(self) -> int:
        return 1 if self.into is None else 2


class UringBlockFile(DrivenBlockFile):
    def __init__(
        self, descriptor: BlockDescriptor, loop: asyncio.AbstractEventLoop, writes: DurableWrites
    ) -> None:
        """Raises UringRefused (an OSError); the descriptor then stays open and the caller's."""
        self._ring = Uring(_ENTRIES)
        super().__init__(descriptor, loop, writes)
        self._fd = descriptor.fd
        self._outstanding: dict[int, _Operation] = {}  # by tag: a write's is even, its read's the next
        self._waiting: deque[_Operation] = deque()
        self._tag = 0
        self._drained: asyncio.Future[None] | None = None
        loop.add_reader(self._ring.eventfd, self._reap)

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]:
        return self._ask(_Operation(position, buffer, self._new_write()))

    def write_then_read(
        self, position: int, buffer: memoryview, read_position: int, into: memoryview
    ) -> asyncio.Future[DiskFailed | None]:
        return self._ask(_Operation(position, buffer, self._new_write(), read_position, into))

    def _ask(self, operation: _Operation) -> asyncio.Future[Any]:
        if len(self._outstanding) + operation.entries <= _ENTRIES:
            self._submit(operation)
        else:
            self._waiting.append(operation)
        return operation.future

    async def _drain(self) -> None:
        while self._outstanding:
            self._drained = self._loop.create_future()
            await self._drained
        self._loop.remove_reader(self._ring.eventfd)
        self._ring.close()

    def _submit(self, operation: _Operation) -> None:
        tag = self._tag = self._tag + 2
        self._outstanding[tag] = operation
        buffer, into = operation.buffer, operation.into
        try:
            if into is None:
                self._ring.write(self._fd, operation.position, address_of(buffer), len(buffer), tag)
            else:
                write = (operation.position, address_of(buffer), len(buffer), tag)
                read = (operation.read_position, address_of(into), len(into), tag + 1)
                self._note_read(tag, operation, self._ring.write_then_read(self._fd, write, read))
            self._writes.begin()
        except OSError as error:
            del self._outstanding[tag]
            self._end(operation, disk_error(error, self._descriptor.path))

    def _note_read(self, tag: int, operation: _Operation, is_asked: bool) -> None:
        operation.is_read_asked = is_asked
        if is_asked:
            self._outstanding[tag + 1] = operation

    def _reap(self) -> None:
        for tag, result in self._ring.reap():
            operation = self._outstanding.pop(tag)
            if tag % 2:
                self._on_read(operation, result)
            else:
                self._writes.end()
                self._on_written(tag, operation, result)
        while self._waiting and len(self._outstanding) + self._waiting[0].entries <= _ENTRIES:
            self._submit(self._waiting.popleft())
        drained = self._drained
        if drained is not None and not self._outstanding:
            self._drained = None
            if not drained.done():  # the loop ends, and has cancelled the close
                drained.set_result(None)

    def _on_written(self, tag: int, operation: _Operation, result: int) -> None:
        if result < 0:
            self._end(operation, disk_error(OSError(-result, os.strerror(-result)), self._descriptor.path))
        elif result != len(operation.buffer):
            words = f"short write: {result} of {len(operation.buffer)} bytes"
            self._end(operation, DiskFailed(self._descriptor.path, words))
        elif operation.into is None:
            self._end(operation)
        elif not operation.is_read_asked:  # the kernel was short of memory when both were asked for
            self._ask_read(tag, operation, operation.into)

    def _ask_read(self, tag: int, operation: _Operation, into: memoryview) -> None:
        self._note_read(tag, operation, True)
        try:
            self._ring.read(self._fd, operation.read_position, address_of(into), len(into), tag + 1)
        except OSError as error:
            del self._outstanding[tag + 1]
            self._end(operation, unread=DiskFailed(self._descriptor.path, os.strerror(error.errno or 0)))

    def _on_read(self, operation: _Operation, result: int) -> None:
        assert operation.into is not None
        if result == len(operation.into):
            self._end(operation)
        elif result != -errno.ECANCELED:  # else the write has told why
            words = os.strerror(-result) if result < 0 else f"short read: {result} bytes"
            self._end(operation, unread=DiskFailed(self._descriptor.path, words))
        else:
            self._end(operation, unread=DiskFailed(self._descriptor.path, "the read was given up"))

    def _end(
        self, operation: _Operation, error: BaseException | None = None, unread: DiskFailed | None = None
    ) -> None:
        if operation.future.done():  # whoever waited may have gone
            return
        if error is None:
            operation.future.set_result(unread)
        else:
            operation.future.set_exception(error)
