"""Those who wait for room, in the order in which they asked.

Not here: how much room there is (storage.py), what makes more of it (the uploader). Keeps true: while
somebody waits, nobody who comes later goes first; a grant stays reserved until the one who waited has run and
taken it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class RoomQueue:
    def __init__(self, on_released: Callable[[], None]) -> None:
        """`on_released` is called when a grant was taken, or came too late for one who had gone."""
        self._on_released = on_released
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.granted_bytes = 0

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def first_needed_bytes(self) -> int:
        return self.waiting[0][0]

    def ask(self, needed_bytes: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((needed_bytes, future))
        return future

    def grant(self, room_bytes: int) -> None:
        """Lets through those at the head for whom `room_bytes` (less what is granted and not yet taken) is
        enough."""
        waiting = self.waiting
        while waiting:
            needed_bytes, future = waiting[0]
            if future.done():
                waiting.popleft()
                continue
            if needed_bytes > room_bytes - self.granted_bytes:
                return
            waiting.popleft()
            self.granted_bytes += needed_bytes
            future.set_result(None)
            # Runs behind the callbacks of the future, thus after whoever awaited it has appended.
            asyncio.get_running_loop().call_soon(self._release, needed_bytes)

    def refuse_first(self, error: BaseException) -> None:
        _, future = self.waiting.popleft()
        if not future.done():
            future.set_exception(error)
            future.exception()  # whoever waited may have gone: then it is nobody's news

    def refuse(self, error: BaseException) -> None:
        """Ends the waiting of all: the engine is closing or has failed."""
        while self.waiting:
            self.refuse_first(error)

    def _release(self, granted_bytes: int) -> None:
        self.granted_bytes -= granted_bytes
        self._on_released()
