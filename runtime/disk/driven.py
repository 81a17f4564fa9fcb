"""What block files have in common, whichever way their writes go: cold calls off the loop, and one close.

Not here: writes (uring_file.py, thread.py).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from millrace.runtime.disk.apart import THREADS_APART
from millrace.runtime.disk.opening import (
    BlockDescriptor,
    close_descriptor,
    read_block,
    reserve_descriptor,
    resize_descriptor,
)
from millrace.runtime.errors import Closed
from millrace.runtime.scheduling.yield_queue import DurableWrites

P = ParamSpec("P")
T = TypeVar("T")


class DrivenBlockFile(ABC):
    """A BlockFile but for `write_at` and `write_then_read`."""

    def __init__(
        self, descriptor: BlockDescriptor, loop: asyncio.AbstractEventLoop, writes: DurableWrites
    ) -> None:
        self.size_bytes = descriptor.size_bytes
        self.is_direct = descriptor.is_direct
        self.is_new = descriptor.is_new
        self.is_device = descriptor.is_device
        self.is_exclusive = descriptor.is_exclusive
        self.keeper = descriptor.keeper
        self._descriptor = descriptor
        self._loop = loop
        self._writes = writes
        self._closing: asyncio.Task[None] | None = None
        self._calls: dict[asyncio.Future[Any], None] = {}  # under way off the loop

    async def read_at(self, position: int, length: int) -> bytes | memoryview:
        return await self._off_loop(read_block, self._descriptor, position, length)

    async def resize(self, size_bytes: int) -> None:
        await self._off_loop(resize_descriptor, self._descriptor, size_bytes)
        self.size_bytes = self._descriptor.size_bytes

    async def reserve(self, key: int, old_key: int) -> bool:
        return await self._off_loop(reserve_descriptor, self._descriptor, key, old_key)

    async def _off_loop(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A thread goes on where whoever waits for it is cancelled: `close` waits for it, or it would work on
        whichever file has the number next. So would one that begins behind it: raises Closed."""
        self._check_open()
        under_way = self._loop.run_in_executor(THREADS_APART, partial(call, *args, **kwargs))
        self._calls[under_way] = None
        under_way.add_done_callback(self._calls.pop)
        return await asyncio.shield(under_way)

    async def close(self) -> None:
        """Waits for whatever was asked for. Idempotent. Cancelling gives up the wait alone: what is under way
        has to end before the descriptor is given back."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name="close of a block file")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._drain()
        close_descriptor(self._descriptor)

    @abstractmethod
    async def _drain(self) -> None:
        """Returns when the last write that was asked for has ended; then nothing of the driver's is left."""

    def _new_write(self) -> asyncio.Future[Any]:
        self._check_open()
        return self._loop.create_future()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise Closed(self._descriptor.path)
