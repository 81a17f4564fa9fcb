"""The work of one request whose answer takes many chunks (runtime/scheduling/chunks.py).

What has begun holds what it has built until its answer is encoded, and yielding alone would let all of it
grow at once: of one API's large requests LARGE_AT_ONCE are at work, and the others wait before they build
more than a chunk. A request of one chunk never waits here, and a handler that answers at once answers it at
once.

Nor is more built while readers leave all unsent that they may (`wait_for_readers`): a request may have begun
before the answers of others filled that.

A decoded element takes up to a hundred times its bytes in a frame, so the frame that a request is charged
says little of it. Requests at work are therefore counted by their chunks, those of all APIs together
(`WideRequests`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from millrace.runtime.scheduling.semaphore import Owner, Semaphore
from millrace.runtime.scheduling.yield_queue import YieldQueue

LARGE_AT_ONCE = 2
WaitForReaders: TypeAlias = Callable[[Owner], Awaitable[None]]
CHUNK_BYTES = 128 << 10  # of decoded elements, or of an answer, between two yields; roughly
FREE_CHUNKS = 4
FEW_TASKS = 10  # about a millisecond


async def nobody_waits(owner: Owner) -> None:
    """Where there are no readers."""


class WideRequests:
    """What all requests at work have decoded and built. Above `limit_bytes` one of them at a time goes on,
    but for the first chunks of each: a small one waits for nobody who asks for much."""

    __slots__ = ("limit_bytes", "turns", "used_bytes", "wait_for_readers")

    def __init__(self, limit_bytes: int, wait_for_readers: WaitForReaders = nobody_waits) -> None:
        self.limit_bytes = limit_bytes
        self.wait_for_readers = wait_for_readers
        self.used_bytes = 0
        self.turns = Semaphore(1)


class RequestWork:
    """From its first yield on, or from `begin`, until `end` it has one of its API's permits, which owners
    share: the connections, by their clients' addresses. One coroutine's: what goes on beside that of the
    request yields in `yield_queue`."""

    __slots__ = ("_chunks_count", "_has_permit", "_has_turn", "_owner", "_permits", "_wide", "yield_queue")

    def __init__(self, yield_queue: YieldQueue, permits: Semaphore, wide: WideRequests, owner: Owner) -> None:
        self.yield_queue = yield_queue
        self._permits = permits
        self._wide = wide
        self._owner = owner
        self._has_permit = False
        self._has_turn = False  # to go on beyond the limit of all
        self._chunks_count = 0

    async def begin(self) -> None:
        if not self._has_permit:
            await self._permits.acquire(self._owner)
            self._has_permit = True
            await self._wide.wait_for_readers(self._owner)

    async def begin_tasks(self, count: int) -> None:
        """The caller is to begin so many tasks at once, which one chunk is too: more than a few are large.
        Five hundred requests of a hundred tasks each held the loop for a second otherwise."""
        if count > FEW_TASKS:
            await self.begin()

    async def yield_now(self) -> None:
        """The caller yields, one large piece of work an iteration of the loop; at first it waits for a
        permit, too, and later, where requests at work hold much, until it may grow."""
        await self.begin()
        wide = self._wide
        if self._chunks_count >= FREE_CHUNKS and not self._has_turn and wide.used_bytes >= wide.limit_bytes:
            await wide.turns.acquire(self._owner)
            self._has_turn = True
        self._chunks_count += 1
        wide.used_bytes += CHUNK_BYTES
        await self.yield_queue.yield_now()

    def end(self) -> None:
        """What follows may wait for anything, and needs a permit only with its next yield."""
        if self._has_permit:
            self._has_permit = False
            self._permits.release(self._owner)
        if self._has_turn:
            self._has_turn = False
            self._wide.turns.release(self._owner)
        self._wide.used_bytes -= CHUNK_BYTES * self._chunks_count
        self._chunks_count = 0
