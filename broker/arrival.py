"""What a connection has received and cannot begin, and what that is charged: a part of a frame, and whole frames that wait for their turn.

A length alone costs nothing, and its promise counts for little. A frame up to SMALL_FRAME_BYTES is charged whole when a part of it is here; a
larger one as its bytes come, in steps that double what is here. Without room for the next step no more is read, and the connection stands in
that memory's line. When all of it is used the line's first gets room for all of its own frame (`RequestMemory.overrun_by`), and keeps that right
until that frame is begun.

Pure. Keeps true: what is here is charged, but for FREE_BYTES of one frame, about what a connection costs by itself.
"""

from __future__ import annotations

from collections.abc import Hashable

from millrace.broker.memory import SMALL_FRAME_BYTES, RequestBudget, RequestMemory

FREE_BYTES = 4 << 10


class Arrival:
    """`who` stands in the lines."""

    __slots__ = ("_budget", "_memory", "_overrun_end", "_who", "held_bytes")

    def __init__(self, budget: RequestBudget, who: Hashable) -> None:
        self._budget = budget
        self._who = who
        self._memory: RequestMemory | None = None
        self._overrun_end = 0  # the connection's position where the frame ends for which it may overrun its memory
        self.held_bytes = 0

    @property
    def memory(self) -> RequestMemory | None:
        """That is charged."""
        return self._memory

    def settle(
        self, kept_bytes: int, part_bytes: int, frame_bytes: int, position: int, *, is_turn: bool
    ) -> RequestMemory | None:
        """Brings the charge up to date; the memory whose line is to be joined before more is read, or None.

        `kept_bytes`: of whole frames. `part_bytes`: what is here of the next one, `frame_bytes`: all of that. `position`: bytes that this
        connection has received in its life. While whole frames wait nothing more is read, and no step is asked for.
        """
        if part_bytes <= FREE_BYTES:
            part_bytes = frame_bytes = 0
        if not (kept_bytes or part_bytes):
            self.release()
            return None
        memory = self._budget.of_arrivals(max(kept_bytes, frame_bytes))
        if memory is not self._memory:
            self.release()
            self._memory = memory
        if memory.overrun_by is self._who and not self._goes_on(memory, kept_bytes, frame_bytes - part_bytes, position):
            memory.end_overrun(self._who)
        if memory.overrun_by is self._who:
            self._set(kept_bytes + frame_bytes)
            return None
        here_bytes = kept_bytes + part_bytes
        wanted_bytes = here_bytes if kept_bytes else step_of(part_bytes, frame_bytes)
        if wanted_bytes <= self.held_bytes or kept_bytes or self._may_grow(memory, is_turn=is_turn):
            self._set(wanted_bytes)
            return None
        self._set(max(here_bytes, self.held_bytes))
        return memory

    def _may_grow(self, memory: RequestMemory, *, is_turn: bool) -> bool:
        """A frame that was begun to be received goes on while others leave room: only its end gives memory back. A new one has its turn."""
        if self.held_bytes:
            return memory.used_bytes - self.held_bytes < memory.limit_bytes
        return memory.take(0, is_turn=is_turn)

    def _goes_on(self, memory: RequestMemory, kept_bytes: int, left_bytes: int, position: int) -> bool:
        """Whether it is still at the frame that it may overrun its memory for."""
        if not self._overrun_end:
            self._overrun_end = position + left_bytes
        if position < self._overrun_end or kept_bytes:
            return True
        self._overrun_end = 0
        return False

    def _set(self, size_bytes: int) -> None:
        assert self._memory is not None
        change_bytes = size_bytes - self.held_bytes
        self.held_bytes = size_bytes
        if change_bytes > 0:
            self._memory.charge(change_bytes)
        elif change_bytes:
            self._memory.release(-change_bytes)

    def release(self) -> None:
        """Nothing is here any more."""
        memory, size_bytes = self._memory, self.held_bytes
        self._memory, self.held_bytes, self._overrun_end = None, 0, 0
        if memory is not None:
            memory.release(size_bytes)
            memory.end_overrun(self._who)


def step_of(part_bytes: int, frame_bytes: int) -> int:
    """How much of a frame is charged of which so much is here."""
    if frame_bytes <= SMALL_FRAME_BYTES:
        return frame_bytes
    return min(frame_bytes, max(SMALL_FRAME_BYTES, 1 << part_bytes.bit_length()))
