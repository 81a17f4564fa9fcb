"""When objects pending deletion may be deleted: a grace after they were marked, longer than any read that
began before. Pure.

The grace runs on the process's own monotonic clock from when the object was first seen marked: no wall clock
that is set shortens it. What had been marked before the process started was marked by a wall clock, and is
given what that says is left; unless it says that it was long ago, or in the future, which a clock that was
set would say as well: then the grace begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from millrace.s3stream.ids import ObjectId

BELIEVED_MS_MAX = 3_600_000


def left_of_grace_ms(marked_ms: int, wall_ms: int, grace_ms: int) -> int:
    """Of an object that was marked for deletion at `marked_ms`, before anybody here had looked."""
    passed_ms = wall_ms - marked_ms
    return max(0, grace_ms - passed_ms) if 0 <= passed_ms <= BELIEVED_MS_MAX else grace_ms


class PendingDeletions:
    """Those that metadata has marked for deletion, by when they may go. Bounded by what metadata has."""

    def __init__(self) -> None:
        self._due_ms: dict[ObjectId, int] = {}
        self._heap: list[tuple[int, ObjectId]] = []

    def __len__(self) -> int:
        return len(self._due_ms)

    def __contains__(self, object_id: object) -> bool:
        return object_id in self._due_ms

    @property
    def next_due_ms(self) -> int | None:
        self._skip_forgotten()
        return self._heap[0][0] if self._heap else None

    def note(self, object_ids: Iterable[ObjectId], due_ms: int) -> None:
        """They are marked for deletion; those that were known keep their time."""
        for object_id in object_ids:
            self.note_one(object_id, due_ms)

    def note_one(self, object_id: ObjectId, due_ms: int) -> None:
        if object_id not in self._due_ms:
            self._set(object_id, due_ms)

    def take_due(self, tick_ms: int, limit: int) -> list[ObjectId]:
        """The longest due first. They stay known until `forget` or `put_off`."""
        due: list[ObjectId] = []
        while len(due) < limit and (next_ms := self.next_due_ms) is not None and next_ms <= tick_ms:
            due.append(heappop(self._heap)[1])
        return due

    def put_off(self, object_ids: Iterable[ObjectId], due_ms: int) -> None:
        """What was taken and could not be deleted."""
        for object_id in object_ids:
            self._set(object_id, due_ms)

    def forget(self, object_ids: Iterable[ObjectId]) -> None:
        for object_id in object_ids:
            self._due_ms.pop(object_id, None)

    def _set(self, object_id: ObjectId, due_ms: int) -> None:
        self._due_ms[object_id] = due_ms
        heappush(self._heap, (due_ms, object_id))

    def _skip_forgotten(self) -> None:
        while self._heap and self._due_ms.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
