"""What a connection has received and cannot begin, and what that is charged: a part of a frame, and whole
frames that wait for their turn.

A length alone costs nothing, and its promise counts for little. A frame up to SMALL_FRAME_BYTES is charged
whole when a part of it is here; a larger one as its bytes come, in steps that double what is here. Without
room for the next step no more is read, and the connection stands in that memory's line. When all of it is
used the first of each class in line may go on all the same (`RequestMemory.is_overrun_by`), and keeps that
right until its frame is begun, or it turns out to be slow (relief.py).

A frame that has no room waits. What is here of it by then, up to a whole read, is charged above the limit;
from CROWDED_FACTOR times that on reads are narrow (receiver.py): newcomers' frames stay in the system's
memory, and what one narrow read brought is charged to nobody. A frame whose rest the system has already does
not wait for its turn, as long as all stays below AT_ONCE_FACTOR times the limit: it is read to its end at
once, whatever its peer does. So a crowd of senders, each as slow as it may be, holds

    CROWDED_FACTOR times the limit (and AT_ONCE_FACTOR, in passing), two frames that may overrun it, one wide
    read, and WAITING_BYTES a connection.

Pure. Keeps true: what is here is charged, but for FREE_BYTES of one frame, or WAITING_BYTES of one that
waits; about what a connection costs by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from millrace.broker.network.memory import SMALL_FRAME_BYTES, RequestBudget, RequestMemory

FREE_BYTES = 4 << 10
WAITING_BYTES = 2 * FREE_BYTES
# Of a frame's rest that the system has: one that is larger waits for its turn all the same.
AT_ONCE_BYTES_MAX = 256 << 10
# A first read of a frame is charged when it was made, above the limit: from so much of it on reads are
# narrow.
CROWDED_FACTOR = 2
AT_ONCE_FACTOR = 4


class Arrival:
    """`who` stands in the lines. `unread_bytes`: what the system has from its peer that nobody has read."""

    __slots__ = ("_budget", "_memory", "_overrun_end", "_unread_bytes", "_who", "held_bytes")

    def __init__(
        self, budget: RequestBudget, who: Hashable, unread_bytes: Callable[[], int] = lambda: 0
    ) -> None:
        self._budget = budget
        self._unread_bytes = unread_bytes
        self._who = who
        self._memory: RequestMemory | None = None
        # the connection's position where the frame ends for which it may overrun its memory
        self._overrun_end = 0
        self.held_bytes = 0

    @property
    def memory(self) -> RequestMemory | None:
        """That is charged."""
        return self._memory

    def settle(
        self, kept_bytes: int, part_bytes: int, frame_bytes: int, position: int, *, is_turn: bool
    ) -> RequestMemory | None:
        """Brings the charge up to date; the memory whose line is to be joined before more is read, or None.

        `kept_bytes`: of whole frames. `part_bytes`: what is here of the next one, `frame_bytes`: all of that.
        `position`: bytes that this connection has received in its life. While whole frames wait nothing more
        is read, and no step is asked for.
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
        is_next = memory.is_overrun_by(self._who)
        if is_next and not self._goes_on(kept_bytes, frame_bytes - part_bytes, position):
            memory.end_overrun(self._who)
            is_next = False
        if not is_next:
            self._overrun_end = 0
        here_bytes = kept_bytes + part_bytes
        wanted_bytes = here_bytes if kept_bytes else step_of(part_bytes, frame_bytes)
        if (
            wanted_bytes <= self.held_bytes
            or kept_bytes
            or is_next
            or self._may_grow(memory, is_turn=is_turn)
        ):
            self._set(wanted_bytes)
            return None
        if self.is_all_here(part_bytes, frame_bytes):
            self._set(frame_bytes)
            return None
        is_little = not self.held_bytes and here_bytes <= WAITING_BYTES
        self._set(0 if is_little else max(here_bytes, self.held_bytes))
        return memory

    def is_all_here(self, part_bytes: int, frame_bytes: int) -> bool:
        """Whether the frame may be read to its end at once, since nobody has to be waited for."""
        memory = self._memory
        assert memory is not None
        rest_bytes = frame_bytes - part_bytes
        if rest_bytes > AT_ONCE_BYTES_MAX:
            return False
        if memory.used_bytes - self.held_bytes + frame_bytes > AT_ONCE_FACTOR * memory.limit_bytes:
            return False
        return self._unread_bytes() >= rest_bytes

    def _may_grow(self, memory: RequestMemory, *, is_turn: bool) -> bool:
        """A frame that was begun to be received goes on while others leave room: only its end gives memory
        back. A new one has its turn."""
        if self.held_bytes:
            return memory.used_bytes - self.held_bytes < memory.limit_bytes
        return memory.take(0, is_turn=is_turn)

    def _goes_on(self, kept_bytes: int, left_bytes: int, position: int) -> bool:
        """Whether it is still at the frame that it may overrun its memory for."""
        if not self._overrun_end:
            self._overrun_end = position + left_bytes
        return position < self._overrun_end or kept_bytes > 0

    def _set(self, size_bytes: int) -> None:
        assert self._memory is not None
        change_bytes = size_bytes - self.held_bytes
        self.held_bytes = size_bytes
        if change_bytes > 0:
            self._memory.charge(change_bytes)
            if self._memory.used_bytes >= CROWDED_FACTOR * self._memory.limit_bytes:
                self._memory.on_crowded()
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
