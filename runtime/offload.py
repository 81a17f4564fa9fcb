"""Runs a pure C function that releases the interpreter off the loop: compression, checksums of large buffers,
hashing.

Only such functions. Python code in a thread takes the interpreter from the loop in chunks of milliseconds;
that work belongs in chunks on the loop or in a subprocess. Small inputs are cheaper done in place: a
hand-over costs about 0.1 ms, which the caller weighs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Offload(Protocol):
    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result or exception. Cancelling the wait does not stop the function."""
        ...

    async def close(self) -> None: ...


class ThreadOffload:
    """A few threads of its own, made on first use, apart from those that wait for the disk."""

    def __init__(self, threads: int = 2) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="offload")

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))

    async def close(self) -> None:
        """Waits for what runs; what has not begun is dropped."""
        await asyncio.get_running_loop().run_in_executor(
            None, lambda: self._pool.shutdown(cancel_futures=True)
        )


class InlineOffload:
    """In place, at once: for simulation and tests."""

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    async def close(self) -> None:
        pass
