"""What was read of one topic, by place, however often and in whatever order places came; its digest goes by
offsets."""

from __future__ import annotations

from collections.abc import Mapping

from tests.demo.digest import MARK_BYTES, Digest


class Reading:
    """`ends`: of each partition, where it ends. Offsets begin at 0 and leave none out."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        self.digest = Digest()
        self.total = sum(ends.values())
        self.repeats = 0  # places that came again, with the same record
        self.early = 0  # places that came before the one below them
        self.changed = 0  # places that came again with another record, or lie beyond the end
        self._ends = dict(ends)
        self._marks = {partition: bytearray() for partition in ends}  # of what is in the digest
        self._waiting: dict[tuple[int, int], tuple[bytes, int]] = {}

    @property
    def partitions(self) -> list[int]:
        return sorted(self._ends)

    @property
    def is_complete(self) -> bool:
        return self.digest.count == self.total

    def add(self, partition: int, offset: int, mark: bytes, value_bytes: int) -> None:
        known = self._known(partition, offset)
        if known is not None:
            self.repeats += known == mark
            self.changed += known != mark
        elif offset >= self._ends[partition]:
            self.changed += 1
        elif offset > self._next(partition):
            self.early += 1
            self._waiting[partition, offset] = mark, value_bytes
        else:
            self._take(partition, mark, value_bytes)
            while (partition, self._next(partition)) in self._waiting:
                self._take(partition, *self._waiting.pop((partition, self._next(partition))))

    def _known(self, partition: int, offset: int) -> bytes | None:
        if offset < self._next(partition):
            return bytes(self._marks[partition][offset * MARK_BYTES : (offset + 1) * MARK_BYTES])
        return self._waiting.get((partition, offset), (None, 0))[0]

    def _next(self, partition: int) -> int:
        return len(self._marks[partition]) // MARK_BYTES

    def _take(self, partition: int, mark: bytes, value_bytes: int) -> None:
        self._marks[partition] += mark
        self.digest.add(partition, mark, value_bytes)
