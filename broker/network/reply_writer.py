"""Replies on their way to the transport: a chunk each iteration of the loop, so that who asks for little need
not wait behind who was given much.

A transport takes at once whatever it is given, and the kernel copies it at once, as far as its buffer goes:
for a reply of some MiB that held the loop for milliseconds. Small replies go out as they come. While the
transport is over its mark nothing is handed on. Kept true: order; nothing is written after `drop`; `close`
waits for what was written before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from millrace.runtime.disk import Buffer

CHUNK_BYTES = 512 << 10


class ReplyWriter:
    def __init__(
        self,
        transport: asyncio.Transport,
        call_soon: Callable[[Callable[[], None]], object],
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called when it may be held no longer, or more or less may be unsent, but not from
        within `write`."""
        self._transport = transport
        self._call_soon = call_soon
        self._on_change = on_change
        self._parts: deque[Buffer] = deque()
        self._parts_bytes = 0
        self._is_paused = False  # by the transport
        self._is_turn_due = False
        self._is_closing = False
        self._is_dropped = False
        self.is_held = False  # something waits here, or the client reads slower than we write
        self.written_bytes = 0  # that `write` was given, in its life

    @property
    def unsent_bytes(self) -> int:
        """All that the system was not given yet: what its client has not taken, and what waits for its
        turn."""
        return 0 if self._is_dropped else self._parts_bytes + self._transport.get_write_buffer_size()

    def write(self, parts: list[Buffer], size_bytes: int) -> None:
        self.written_bytes += size_bytes
        if size_bytes <= CHUNK_BYTES and not self.is_held:
            self._transport.writelines(parts)
            return
        self._parts.extend(parts)
        self._parts_bytes += size_bytes
        self._go_on()

    def close(self) -> None:
        """The transport is closed once it has been given everything."""
        self._is_closing = True
        if not self._parts:
            self._transport.close()

    def drop(self) -> None:
        """What was not handed on is gone, and nobody is held."""
        self._parts.clear()
        self._parts_bytes = 0
        self._is_dropped = True
        self._is_paused = self.is_held = False

    def on_paused(self) -> None:
        self._is_paused = self.is_held = True

    def on_resumed(self) -> None:
        self._is_paused = False
        self._go_on()
        self._tell()

    def _go_on(self) -> None:
        """One chunk, now, unless one was written in this iteration."""
        if self._parts and not (self._is_paused or self._is_turn_due):
            self._transport.writelines(self._next_chunk())
            self._is_turn_due = True
            self._call_soon(self._on_yielded)
        self.is_held = self._is_paused or bool(self._parts)

    def _on_yielded(self) -> None:
        self._is_turn_due = False
        was_held = self.is_held
        self._go_on()
        if was_held:
            self._tell()

    def _tell(self) -> None:
        if self._is_closing and not self._parts:
            self._transport.close()
        self._on_change()

    def _next_chunk(self) -> list[Buffer]:
        parts, left_bytes = self._parts, CHUNK_BYTES
        taken: list[Buffer] = []
        while parts and left_bytes:
            part = parts.popleft()
            if len(part) > left_bytes:
                view = memoryview(part)
                parts.appendleft(view[left_bytes:])
                part = view[:left_bytes]
            taken.append(part)
            left_bytes -= len(part)
        self._parts_bytes -= CHUNK_BYTES - left_bytes
        return taken
