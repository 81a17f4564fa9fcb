"""KeptRoom: the engine's room as small states, or coordinators, see it.

Not here: how much room there is (storage.py), who waits in which order (room.py). Keeps true: what is kept
for the lines before this one is not taken here, nor anything while one of them waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from millrace.s3stream.room import RoomQueue


class WholeRoom(Protocol):
    """The engine (storage.py)."""

    @property
    def entry_bytes_max(self) -> int: ...

    def room_beside(self, kept_bytes: int) -> int: ...

    def ask_room(self, line: RoomQueue, needed_bytes: int) -> asyncio.Future[None]: ...


class KeptRoom:
    """The same verbs as the engine's, a line of their own, before that of data.

    `kept_bytes` of the engine's room are left to the lines before this one."""

    def __init__(
        self, whole: WholeRoom, before: tuple[RoomQueue, ...], on_released: Callable[[], None]
    ) -> None:
        self._whole = whole
        self.queue = RoomQueue(on_released)
        self._before = before
        self.kept_bytes = 0

    @property
    def room_bytes(self) -> int:
        if self.queue or any(self._before):
            return 0
        return self._whole.room_beside(self.kept_bytes)

    @property
    def entry_bytes_max(self) -> int:
        return self._whole.entry_bytes_max

    def has_room(self, needed_bytes: int) -> bool:
        return needed_bytes <= self.room_bytes

    def wait_for_room(self, needed_bytes: int) -> asyncio.Future[None]:
        return self._whole.ask_room(self.queue, needed_bytes)
