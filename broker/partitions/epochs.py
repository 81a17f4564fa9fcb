"""Leader epochs of one partition: at which offset each began. Pure.

Consumers ask where an epoch ended, to see whether what they read was cut off by a change of leader. Here
nothing acknowledged is ever cut off, but the question is answered all the same, and every batch carries its
epoch.

Not here: which epoch is current (the metadata says), and storing (the meta stream does).

Invariant: epochs and start offsets both strictly grow from one entry to the next, but for the first, whose
start may be raised to the log's start. At most `EPOCHS_MAX` entries: over it the oldest are forgotten, as if
the log began later.
"""

from __future__ import annotations

import struct

from millrace.runtime.errors import Corrupt

EPOCHS_MAX = 10_000
UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1

_VERSION = 1
_HEAD = struct.Struct(">BxxxI")
_ENTRY = struct.Struct(">iq")


class Epochs:
    """(epoch, start offset), ascending."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []

    def __repr__(self) -> str:
        return " ".join(f"{epoch}@{start}" for epoch, start in self._entries)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._entries)

    @property
    def latest(self) -> int:
        """The highest epoch known, -1 when none is."""
        return self._entries[-1][0] if self._entries else UNDEFINED_EPOCH

    def assign(self, epoch: int, start_offset: int) -> bool:
        """`epoch` begins at `start_offset`; True when that was news. An epoch that wrote nothing gives its
        place to the next."""
        entries = self._entries
        if entries and epoch <= entries[-1][0]:
            return False
        while entries and entries[-1][1] >= start_offset:
            entries.pop()
        entries.append((epoch, start_offset))
        if len(entries) > EPOCHS_MAX:
            del entries[0]
        return True

    def end_of(self, asked: int, log_end: int) -> tuple[int, int]:
        """The largest epoch at or below `asked` and the offset where it ended; (-1, -1) when `asked` is none
        or above all."""
        entries = self._entries
        if not entries or asked < 0 or asked > entries[-1][0]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if asked == entries[-1][0]:
            return asked, log_end
        for position in range(len(entries) - 2, -1, -1):
            if entries[position][0] <= asked:
                return entries[position][0], entries[position + 1][1]
        return asked, entries[0][1]

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote `offset`, -1 when it is not known any more."""
        for epoch, start in reversed(self._entries):
            if start <= offset:
                return epoch
        return UNDEFINED_EPOCH

    def raise_start(self, log_start: int) -> bool:
        """The log begins at `log_start` now: epochs that ended before it are forgotten. True when that
        changed anything."""
        entries = self._entries
        keep = 0
        while keep + 1 < len(entries) and entries[keep + 1][1] <= log_start:
            keep += 1
        if keep:
            del entries[:keep]
        if entries and entries[0][1] < log_start:
            entries[0] = (entries[0][0], log_start)
            return True
        return keep > 0

    def cut_at(self, log_end: int) -> bool:
        """Forgets epochs that begin above `log_end`: they were written down, and what they led was not."""
        before = len(self._entries)
        while self._entries and self._entries[-1][1] > log_end:
            self._entries.pop()
        return len(self._entries) != before

    def encode(self) -> bytes:
        return _HEAD.pack(_VERSION, len(self._entries)) + b"".join(
            _ENTRY.pack(*entry) for entry in self._entries
        )

    @staticmethod
    def decode(data: bytes | memoryview) -> Epochs:
        """Raises Corrupt for bytes that `encode` did not make."""
        epochs = Epochs()
        if len(data) < _HEAD.size:
            raise Corrupt("leader epochs are cut off")
        version, count = _HEAD.unpack_from(data, 0)
        if version != _VERSION or len(data) != _HEAD.size + count * _ENTRY.size:
            raise Corrupt(f"leader epochs: version {version}, {count} entries in {len(data)} bytes")
        epochs._entries = [
            _ENTRY.unpack_from(data, _HEAD.size + index * _ENTRY.size) for index in range(count)
        ]
        return epochs
