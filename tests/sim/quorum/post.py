"""The network between controllers: messages as values, late, out of order, twice, lost, or cut off one way.

A stronger adversary than TCP: nothing is in order, and what was sent to a process may reach the next one in
its place. A message that is due is handed over in the life of whoever runs there then; to nobody, where
nobody does.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

from millrace.kraft.raft.messages import Message
from millrace.runtime.rand import Rand
from tests.sim.loop import SimLoop
from tests.sim.trace import Note

LATE_MS = 400  # a message that is out of order is late by up to so much
PER_MILLE = 1000


class Post:
    def __init__(self, loop: SimLoop, rand: Rand, note: Note, hand_over: Callable[[Message], None]) -> None:
        self.hits: Counter[str] = Counter()
        self.delay_ms = (1, 8)
        self.lost_per_mille = 0
        self.twice_per_mille = 0
        self.late_per_mille = 0
        self.is_cut: dict[tuple[int, int], int] = {}  # (from, to) -> how many cuts lie on it
        self._loop = loop
        self._rand = rand
        self._note = note
        self._hand_over = hand_over

    def send(self, message: Message) -> None:
        if not self.passes(message.source, message.target):
            return
        if self._rand.below(PER_MILLE) < self.twice_per_mille:
            self.hits["sent twice"] += 1
            self._post(message)
        self._post(message)

    def passes(self, source: int, target: int) -> bool:
        """Whether something that is sent now gets through."""
        if self.is_cut.get((source, target)):
            self.hits["cut off"] += 1
            return False
        if self._rand.below(PER_MILLE) < self.lost_per_mille:
            self.hits["lost"] += 1
            return False
        return True

    def draw_delay_s(self) -> float:
        low, high = self.delay_ms
        delay_us = low * 1000 + self._rand.below((high - low) * 1000)
        if self._rand.below(PER_MILLE) < self.late_per_mille:
            self.hits["out of order"] += 1
            delay_us += self._rand.below(LATE_MS * 1000)
        return delay_us / 1e6

    def _post(self, message: Message) -> None:
        self._loop.call_later(self.draw_delay_s(), self._arrive, copy.copy(message))

    def _arrive(self, message: Message) -> None:
        if self.is_cut.get((message.source, message.target)):
            self.hits["cut off"] += 1
            return
        self._note(repr(message))
        self._hand_over(message)

    def cut(self, source: int, target: int) -> None:
        """One way, until as many `heal`s."""
        self.is_cut[source, target] = self.is_cut.get((source, target), 0) + 1

    def heal(self, source: int, target: int) -> None:
        self.is_cut[source, target] -= 1

    def calm(self) -> None:
        """From now on all is as it should be."""
        self.delay_ms = (1, 8)
        self.lost_per_mille = self.twice_per_mille = self.late_per_mille = 0
        self.is_cut.clear()
