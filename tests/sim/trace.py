"""What happened in a run, as lines: a hash of all of them, and the last few for whoever looks into a failure.

Every edge of the simulated world notes what crosses it (disk writes, store requests, bytes on the network,
faults, kills), so that two runs that agree on the hash did the same things at the same times. Numbers and
short words only: nothing whose text follows memory addresses or the order of a set.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

Note = Callable[..., None]


class Trace:
    """`now_us` tells the time of the run."""

    def __init__(self, now_us: Callable[[], int], kept_count: int = 20_000) -> None:
        self.count = 0
        self.tail: deque[str] = deque(maxlen=kept_count)
        self._now_us = now_us
        self._hash = hashlib.sha256()

    def note(self, actor: str, *words: object) -> None:
        line = f"{self._now_us()} {actor} {' '.join(map(str, words))}"
        self.count += 1
        self.tail.append(line)
        self._hash.update(line.encode() + b"\n")

    def of(self, actor: str) -> Note:
        """A way to note that already knows whose line it is."""
        return lambda *words: self.note(actor, *words)

    def digest(self) -> str:
        return self._hash.hexdigest()
