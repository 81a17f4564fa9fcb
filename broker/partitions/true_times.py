"""What was found out about batches whose headers claim a later timestamp than their records have. Pure.

Two sorts of note, both of one partition's offsets, which are never given to other bytes: a batch's largest
timestamp, by its base offset; and a stretch of the log that was scanned and had such batches in it, by its
start: no record in it is later than its bound. A lookup steps over what cannot hold its time, without reading
it.

Kept true: `NOTES_MAX` of each sort at most; what was used longest ago is forgotten first, and is found out
again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

T = TypeVar("T")
NOTES_MAX = 16_384  # about 4 MiB of each sort

Place = tuple[bytes, int]  # a topic's id and a partition's index
_At = tuple[bytes, int, int]


class TrueTimes:
    def __init__(self, notes_max: int = NOTES_MAX) -> None:
        self._notes_max = notes_max
        self._batches: OrderedDict[_At, int] = OrderedDict()
        self._stretches: OrderedDict[_At, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._batches) + len(self._stretches)

    def note_batch(self, place: Place, base_offset: int, largest_ms: int) -> None:
        """The batch that begins there has no later record."""
        self._keep(self._batches, (*place, base_offset), largest_ms)

    def largest_of(self, place: Place, base_offset: int) -> int | None:
        """None: nothing is known but what its header claims."""
        at = (*place, base_offset)
        found = self._batches.get(at)
        if found is not None:
            self._batches.move_to_end(at)
        return found

    def note_stretch(self, place: Place, start: int, end: int, largest_ms: int) -> None:
        """No record of the batches in [start, end) is later. Both are bounds of batches."""
        self._keep(self._stretches, (*place, start), (end, largest_ms))

    def skip(self, place: Place, offset: int, timestamp_ms: int) -> int:
        """The offset from which on a scan for that time has to read; stretches follow each other."""
        if not self._stretches:
            return offset
        while True:
            at = (*place, offset)
            found = self._stretches.get(at)
            if found is None or found[1] >= timestamp_ms:
                return offset
            self._stretches.move_to_end(at)
            offset = found[0]

    def _keep(self, notes: OrderedDict[_At, T], at: _At, note: T) -> None:
        notes[at] = note
        notes.move_to_end(at)
        if len(notes) > self._notes_max:
            notes.popitem(last=False)
