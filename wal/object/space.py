"""What is in the log, object by object, and what may still be appended. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from millrace.wal.object.layout import HEADER_BYTES, Place
from millrace.wal.record import RECORD_HEADER_BYTES

LEAST_PAYLOAD_BYTES = 64  # of the records that `room_bytes` promises room for


class LiveObjects:
    """Objects of the log in order, from the durable head on, those that are not confirmed yet included."""

    def __init__(self, position: int) -> None:
        self._end = position
        self._objects: deque[tuple[Place, int, int]] = (
            deque()
        )  # place, position, end; between two may lie damage

    def __len__(self) -> int:
        return len(self._objects)

    def add(self, place: Place, end: int, position: int | None = None) -> None:
        """`position`: where the object begins, if it is not where the one before it ends."""
        self._objects.append((place, self._end if position is None else position, end))
        self._end = end

    def head_for(self, trim: int) -> tuple[Place, int] | None:
        """The first object that ends above the trim, and its position; None when none does."""
        return next(((place, position) for place, position, end in self._objects if end > trim), None)

    def forget(self, position: int) -> Iterable[Place]:
        """Takes out what ends at or below the new head's position."""
        while self._objects and self._objects[0][2] <= position:
            yield self._objects.popleft()[0]


def payload_room(raw_bytes: int, batch_bytes_max: int) -> int:
    """Payload bytes that surely fit, in however many records of at least 64 bytes and in the objects these
    make."""
    header_bytes = (4 + raw_bytes // batch_bytes_max) * HEADER_BYTES
    return max(
        0, (raw_bytes - header_bytes) * LEAST_PAYLOAD_BYTES // (LEAST_PAYLOAD_BYTES + RECORD_HEADER_BYTES)
    )
