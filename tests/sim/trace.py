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
HASHED_AT_ONCE = 500  # lines


class Trace:
    """`now_us` tells the time of the run."""

    def __init__(self, now_us: Callable[[], int], kept_count: int = 20_000) -> None:
        self.count = 0
        self.tail: deque[str] = deque(maxlen=kept_count)
        self._now_us = now_us
        self._hash = hashlib.sha256()
        self._unhashed: list[str] = []

    def note(self, actor: str, *words: object) -> None:
        self._add(f"{self._now_us()} {actor} {' '.join(map(str, words))}")

    def of(self, actor: str) -> Note:
        """A way to note that already knows whose line it is."""
        now_us, add = self._now_us, self._add
        return lambda *words: add(f"{now_us()} {actor} {' '.join(map(str, words))}")

    def _add(self, line: str) -> None:
        self.count += 1
        self.tail.append(line)
        self._unhashed.append(line)
        if len(self._unhashed) >= HASHED_AT_ONCE:
            self._hash_all()

    def _hash_all(self) -> None:
        self._unhashed.append("")  # each line ends
        self._hash.update("\n".join(self._unhashed).encode())
        self._unhashed.clear()

    def digest(self) -> str:
        if self._unhashed:
            self._hash_all()
        return self._hash.hexdigest()
