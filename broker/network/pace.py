"""Who holds memory that others wait for and goes on too slowly: the least pace, how it is measured, whose
connection ends.

Pure. Asked only while a part of the request budget is used up. A holder's pace is what its peer sent, or
acknowledged, over OBSERVED_S and up to twice that. It has to be MINIMUM_BYTES_S, and such that the rest is
there within `rest_s` of the part. Of those below it as many are ended as bring the use down to RELIEVED of
the limit: those first whose address holds most, and of an address the slowest for what is left.

Senders at the least pace are as many as they like, each from an address of its own. So all together whose
pace is below QUICK_BYTES_S may hold SLOW_PART of the limit; beyond it those are ended who have held a frame
longest, down to the last one, who alone may hold more.

Without anybody who waits a peer may be as slow as it likes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Generic, TypeVar

from millrace.protocol.dataclass import dataclass

T = TypeVar("T")
OBSERVED_S = 0.5
HELD_UP_AFTER_S = 0.1  # who took longer to be held up was not quick
MINIMUM_BYTES_S = 64 << 10
RELIEVED = 0.75
QUICK_BYTES_S = 1 << 20
SLOW_PART = 0.5
# A whole frame may be large and its sender's line narrow; what a reader leaves unsent delays everybody's next
# Fetch.
SEND_REST_S = 10.0
READ_REST_S = 1.0


class Pace:
    """How far one peer has come, looked at now and then."""

    __slots__ = (
        "_is_held_up",
        "_new_bytes",
        "_new_s",
        "_old_bytes",
        "_old_s",
        "_task",
        "last_bytes_s",
        "since_s",
    )

    def __init__(self, now_s: float, done_bytes: int, task: int = 0) -> None:
        self._task = task
        self._is_held_up = True  # at the last look; of nobody is known that it was not before the first
        self.last_bytes_s: float | None = None  # when it was seen last
        self.since_s = now_s  # when the task of now was first seen
        self._old_s = self._new_s = now_s
        self._old_bytes = self._new_bytes = done_bytes

    def see(self, now_s: float, done_bytes: int, task: int = 0) -> float | None:
        """Bytes a second lately; None before OBSERVED_S have gone by. `task`: what it is at."""
        self._is_held_up = False
        if task != self._task:
            self._task, self.since_s = task, now_s
        observed_s = now_s - self._old_s
        if observed_s < OBSERVED_S:
            return None
        bytes_s = self.last_bytes_s = max(0, done_bytes - self._old_bytes) / observed_s
        if now_s - self._new_s >= OBSERVED_S:
            self._old_s, self._old_bytes = self._new_s, self._new_bytes
            self._new_s, self._new_bytes = now_s, done_bytes
        return bytes_s

    def see_held_up(self, now_s: float, done_bytes: int) -> float | None:
        """As `see`, of a peer that has to wait for us by now: what it did until then is its pace."""
        observed_s = now_s - self._old_s
        if self.last_bytes_s is None and observed_s >= HELD_UP_AFTER_S and not self._is_held_up:
            self.last_bytes_s = max(0, done_bytes - self._old_bytes) / observed_s
        self._old_s, self._old_bytes = self._new_s, self._new_bytes = now_s, done_bytes
        self._is_held_up = True
        return self.last_bytes_s


@dataclass(frozen=True, slots=True)
class Holding(Generic[T]):
    """`bytes_s` None: not known yet, or not the peer's to go on. `since_s`: when it was first seen with what
    it is at."""

    who: T
    address: str
    held_bytes: int
    rest_bytes: int
    bytes_s: float | None
    since_s: float = 0.0


def plan_slow_endings(holdings: Iterable[Holding[T]], limit_bytes: int) -> list[Holding[T]]:
    """Whose connection ends since those who are slow hold too much together, in order."""
    slow = [
        one for one in holdings if one.held_bytes and one.bytes_s is not None and one.bytes_s < QUICK_BYTES_S
    ]
    slow.sort(key=lambda one: one.since_s)
    held_bytes = sum(one.held_bytes for one in slow)
    endings = []
    for holding in slow[:-1]:
        if held_bytes <= SLOW_PART * limit_bytes:
            break
        held_bytes -= holding.held_bytes
        endings.append(holding)
    return endings


def plan_endings(
    holdings: Iterable[Holding[T]], used_bytes: int, limit_bytes: int, rest_s: float
) -> list[Holding[T]]:
    """Whose connection ends, in order."""
    by_address: Counter[str] = Counter()
    slow: list[Holding[T]] = []
    for holding in holdings:
        by_address[holding.address] += holding.held_bytes
        if holding.bytes_s is not None and holding.bytes_s < max(
            MINIMUM_BYTES_S, holding.rest_bytes / rest_s
        ):
            slow.append(holding)
    slow.sort(key=lambda one: (-by_address[one.address], (one.bytes_s or 0) / max(1, one.rest_bytes)))
    endings = []
    for holding in slow:
        if used_bytes <= RELIEVED * limit_bytes:
            break
        used_bytes -= holding.held_bytes
        endings.append(holding)
    return endings
