"""HandOver: which partitions of brokers that end are between two leaders, so that only so many are at a time.
Pure.

    settle gives a turn of a broker's partitions to others
      ─► it closes them ─► half of them are closed: the next turn
                        ─► TURN_S have passed: the next turn, whatever became of this one

A partition takes no writes from the moment it is somebody else's until who led it has uploaded and closed its
streams. A broker that gave away thousands at once had each of them wait for all the others. Not here: who is
given which (commands/leaders.py), when this is looked at (broker_watch.py). It lives with a leadership: a new
controller knows of no turn, and begins one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from millrace.kraft.image.image import MetadataImage
from millrace.protocol.dataclass import dataclass

TURN_S: Final = 2.0  # a store that is away holds up what it has to, and not all other partitions

Key = tuple[bytes, int]  # topic id, index


@dataclass(frozen=True, slots=True)
class Turn:
    """Of one broker that ends: what goes to others, and whether it leads more than that."""

    moved: Sequence[Key]
    has_more: bool


class HandOver:
    """Times are seconds of the loop's clock."""

    def __init__(self) -> None:
        self._between: dict[int, deque[Key]] = {}  # by broker, in the order of their moves
        self._sizes: dict[int, int] = {}  # of these, when the last turn began
        self._began_s: dict[int, float] = {}
        self._waiting: dict[int, None] = {}  # brokers that lead more

    def clear(self) -> None:
        for table in (self._between, self._sizes, self._began_s, self._waiting):
            table.clear()

    @property
    def is_waiting(self) -> bool:
        """Some broker leads more than its turn."""
        return bool(self._waiting)

    def between(self) -> dict[int, int]:
        """How many partitions of each broker are to be closed still."""
        return {broker_id: len(keys) for broker_id, keys in self._between.items()}

    def begin(self, turns: Mapping[int, Turn], now_s: float) -> None:
        """They are committed. `turns`: by broker, of all that end."""
        for broker_id in [one for one in self._between if one not in turns]:
            for table in (self._between, self._sizes, self._began_s, self._waiting):
                table.pop(broker_id, None)
        for broker_id, turn in turns.items():
            keys = self._between.setdefault(broker_id, deque())
            if turn.moved:
                keys.extend(turn.moved)
                self._sizes[broker_id], self._began_s[broker_id] = len(keys), now_s
            if turn.has_more:
                self._waiting[broker_id] = None
            else:
                self._waiting.pop(broker_id, None)

    def is_due(self, image: MetadataImage, now_s: float) -> bool:
        """Whether some broker's next turn is to begin. Looks at what was moved first, and at no more than is
        closed of it."""
        found = False
        for broker_id in self._waiting:
            keys = self._between[broker_id]
            while keys and not is_open_at(image, keys[0], broker_id):
                keys.popleft()
            if now_s - self._began_s.get(broker_id, now_s) > TURN_S:
                keys.clear()
            found = found or len(keys) <= self._sizes.get(broker_id, 0) // 2
        return found


def is_open_at(image: MetadataImage, key: Key, broker_id: int) -> bool:
    """A stream of the partition is open there."""
    return any(one.is_open and one.node_id == broker_id for one in image.streams.of_partition(*key))
