"""The work of one request whose answer takes many chunks (runtime/scheduling/chunks.py).

What has begun holds what it has built until its answer is encoded, and yielding alone would let all of it
grow at once: of one API's large requests LARGE_AT_ONCE are at work, and the others wait before they build
more than a chunk. A request of one chunk never waits here, and a handler that answers at once answers it at
once.
"""

from __future__ import annotations

from millrace.runtime.scheduling.semaphore import Owner, Semaphore
from millrace.runtime.scheduling.yield_queue import YieldQueue

LARGE_AT_ONCE = 2


class RequestWork:
    """From its first yield on, or from `begin`, until `end` it has one of its API's permits, which owners
    share: the connections, by their clients' addresses. One coroutine's: what goes on beside that of the
    request yields in `yield_queue`."""

    __slots__ = ("_has_permit", "_owner", "_permits", "yield_queue")

    def __init__(self, yield_queue: YieldQueue, permits: Semaphore, owner: Owner) -> None:
        self.yield_queue = yield_queue
        self._permits = permits
        self._owner = owner
        self._has_permit = False

    async def begin(self) -> None:
        if not self._has_permit:
            await self._permits.acquire(self._owner)
            self._has_permit = True

    async def yield_now(self) -> None:
        """The caller yields, one large piece of work an iteration of the loop; at first it waits for a
        permit, too."""
        await self.begin()
        await self.yield_queue.yield_now()

    def end(self) -> None:
        """What follows may wait for anything, and needs a permit only with its next yield."""
        if self._has_permit:
            self._has_permit = False
            self._permits.release(self._owner)
