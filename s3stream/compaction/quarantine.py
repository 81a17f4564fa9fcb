"""Objects that are quarantined because they could not be read: left alone, told once, tried again later and
later. Pure.

What an unreadable object holds is never taken for nothing: it takes part in no plan, and stays as it is until
it can be read, or nothing of it is wanted any more.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.s3stream.ids import ObjectId

RETRY_S_MIN = 300.0
RETRY_S_MAX = 86_400.0
KNOWN_MAX = 10_000


class Quarantine:
    """Times are the loop's, in seconds."""

    def __init__(self) -> None:
        self._until: dict[ObjectId, tuple[float, float]] = {}  # when it is tried again, and the pause before

    def __len__(self) -> int:
        return len(self._until)

    def put(self, object_id: ObjectId, now_s: float, *, is_growing: bool = True) -> bool:
        """Whether it was not known before. `is_growing`: the pause before the next try is twice the last
        one."""
        known = self._until.get(object_id)
        pause_s = RETRY_S_MIN if known is None or not is_growing else min(RETRY_S_MAX, 2 * known[1])
        if known is None and len(self._until) >= KNOWN_MAX:
            self._until.clear()
        self._until[object_id] = (now_s + pause_s, pause_s)
        return known is None

    def has(self, object_id: ObjectId, now_s: float) -> bool:
        found = self._until.get(object_id)
        return found is not None and now_s < found[0]

    def readmit(self, object_ids: Iterable[ObjectId]) -> None:
        """They were read."""
        for object_id in object_ids:
            self._until.pop(object_id, None)

    def next_try_s(self, after_s: float) -> float | None:
        """When the next one is to be tried, of those whose time comes after a look at `after_s`. That look
        tried the others: what was not quarantined again by it exists no more."""
        return min((until for until, _ in self._until.values() if until > after_s), default=None)
