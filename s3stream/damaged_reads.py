"""Stored data that reads failed on: which offsets of which stream, until a later read gives them or they are
trimmed.

Pure: every read of a stream reports here how it ended (stream.py). A read that fails for damage fails at its
first offset. The listener is told of each damage when it is met first, again every SAY_EVERY_S while reads go
on failing on it, and when a read gave what was damaged.

Bounded: DAMAGES_MAX are remembered. Beyond, failed reads are counted alone, but that each SAY_EVERY_S one is
told of, in the place of the one that was met first: so a missing object of a thousand streams is not told of
at each read. Not here: names of partitions, log lines, metrics (broker/background/damage_log.py), what
compaction and fsck find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millrace.protocol.dataclass import dataclass
from millrace.runtime.errors import Corrupt
from millrace.s3stream.errors import ObjectCorrupt

DAMAGES_MAX = 256
SAY_EVERY_S = 60.0


@dataclass(slots=True)
class Damage:
    """[start, end) of a stream cannot be read. `end` is None where it is not known how far the damage goes:
    the object is missing, or its index is damaged. Times are the loop's."""

    stream_id: int
    start: int
    end: int | None
    cause: str
    found_s: float
    said_s: float


def _ignore(damage: Damage, now_s: float) -> None:
    """Where nobody listens."""


class DamagedReads:
    def __init__(self) -> None:
        self._damages: dict[tuple[int, str], Damage] = {}
        self._displaced_s = float("-inf")  # when one was forgotten last for another
        self.failed_count = 0  # reads
        self.on_damage: Callable[[Damage, float], None] = _ignore
        self.on_repaired: Callable[[Damage, float], None] = _ignore

    def __bool__(self) -> bool:
        """Whether any damage is known."""
        return bool(self._damages)

    def __iter__(self) -> Iterator[Damage]:
        return iter(list(self._damages.values()))

    def note_failed(self, stream_id: int, offset: int, error: Corrupt, now_s: float) -> None:
        """A read of the stream failed at `offset`."""
        self.failed_count += 1
        key = stream_id, str(error)
        known = self._damages.get(key)
        if known is not None:
            known.start = min(known.start, offset)
            if now_s - known.said_s < SAY_EVERY_S:
                return
            known.said_s = now_s
        else:
            if len(self._damages) >= DAMAGES_MAX:
                if now_s - self._displaced_s < SAY_EVERY_S:
                    return
                self._displaced_s = now_s
                del self._damages[next(iter(self._damages))]
            offsets = error.offsets if isinstance(error, ObjectCorrupt) else None
            start, end = offsets or (offset, None)
            known = self._damages[key] = Damage(stream_id, start, end, key[1], now_s, now_s)
        self.on_damage(known, now_s)

    def note_read(self, stream_id: int, start: int, end: int, now_s: float) -> None:
        """A read of the stream gave [start, end)."""
        for key, damage in list(self._damages.items()):
            if damage.stream_id == stream_id and start <= damage.start < end:
                del self._damages[key]
                self.on_repaired(damage, now_s)

    def forget(self, damage: Damage) -> None:
        """The stream was trimmed above it, or deleted."""
        self._damages.pop((damage.stream_id, damage.cause), None)
