"""StreamRanges: which objects hold one stream, as three packed columns, found by bisection.

24 bytes a range, however many there are. Versions share their columns: a newer version may be longer (its ranges were
appended in place behind what older versions see) or start later. A version that is not the newest of its columns copies
them before it appends, so that a line of versions that was given up does no harm.

Kept true: starts and ends ascend, ranges do not overlap.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator

from millrace.s3stream.ids import ObjectId

HEAD_KEPT_MAX = 64  # dropped ranges that may stay before the rest


class StreamRanges:
    __slots__ = ("_count", "_ends", "_head", "_ids", "_starts")

    def __init__(self, starts: array[int], ends: array[int], ids: array[int], head: int, count: int) -> None:
        self._starts = starts
        self._ends = ends
        self._ids = ids
        self._head = head  # the first range that is alive
        self._count = count  # behind the last

    @classmethod
    def of(cls, start: int, end: int, object_id: int) -> StreamRanges:
        return cls(array("q", (start,)), array("q", (end,)), array("q", (object_id,)), 0, 1)

    def add(self, start: int, end: int, object_id: int) -> StreamRanges:
        """With one more range. Commits add behind the last; a snapshot is loaded in order of objects."""
        assert start < end, (start, end)
        if start < self._ends[self._count - 1]:
            return self._with_between(start, end, object_id)
        ranges = self if len(self._ends) == self._count else self._copied()
        ranges._starts.append(start)
        ranges._ends.append(end)
        ranges._ids.append(object_id)
        return StreamRanges(ranges._starts, ranges._ends, ranges._ids, ranges._head, ranges._count + 1)

    def drop_below(self, offset: int) -> tuple[StreamRanges | None, list[ObjectId]]:
        """Without the ranges that end at or below `offset`, and whose they were. None when none is left."""
        head = bisect_right(self._ends, offset, self._head, self._count)
        dropped = [ObjectId(object_id) for object_id in self._ids[self._head : head]]
        if head == self._count:
            return None, dropped
        if not dropped:
            return self, dropped
        rest = StreamRanges(self._starts, self._ends, self._ids, head, self._count)
        return (rest._copied() if head > max(HEAD_KEPT_MAX, self._count // 2) else rest), dropped

    def replaced(
        self, start: int, end: int, object_id: ObjectId, sources: Container[int]
    ) -> tuple[StreamRanges, list[ObjectId], list[ObjectId]]:
        """With `object_id` in the place of the sources in [start, end); of whom ranges went, and of whom came."""
        first = bisect_right(self._ends, start, self._head, self._count)
        last = bisect_left(self._starts, end, first, self._count)
        old = [(self._starts[place], self._ends[place], ObjectId(self._ids[place])) for place in range(first, last)]
        new: list[tuple[int, int, ObjectId]] = []
        for low, high, holder in old:
            if holder not in sources:
                new.append((low, high, holder))
                continue
            if low < start:
                new.append((low, start, holder))
            if new and new[-1][2] == object_id and new[-1][1] == max(low, start):
                new[-1] = (new[-1][0], min(high, end), object_id)
            else:
                new.append((max(low, start), min(high, end), object_id))
            if high > end:
                new.append((end, high, holder))
        if new == old:
            return self, [], []
        return self._spliced(first, last, new), [one[2] for one in old], [one[2] for one in new]

    def _spliced(self, first: int, last: int, new: list[tuple[int, int, ObjectId]]) -> StreamRanges:
        copied = self._copied()
        window = slice(first - self._head, last - self._head)
        copied._starts[window] = array("q", (one[0] for one in new))
        copied._ends[window] = array("q", (one[1] for one in new))
        copied._ids[window] = array("q", (one[2] for one in new))
        copied._count = len(copied._ids)
        return copied

    def find(self, start: int, end: int, limit: int) -> list[tuple[int, int, ObjectId]]:
        """Continuous ranges from the one that holds `start` up to `end`, at most `limit`; none when none holds `start`."""
        place = bisect_right(self._ends, start, self._head, self._count)
        found: list[tuple[int, int, ObjectId]] = []
        expected = start
        while place < self._count and len(found) < limit and expected < end:
            first, last = self._starts[place], self._ends[place]
            if first > expected:
                break
            found.append((first, last, ObjectId(self._ids[place])))
            expected = last
            place += 1
        return found

    def __len__(self) -> int:
        return self._count - self._head

    def __iter__(self) -> Iterator[tuple[int, int, ObjectId]]:
        for place in range(self._head, self._count):
            yield self._starts[place], self._ends[place], ObjectId(self._ids[place])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamRanges) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return " ".join(f"[{start},{end})@{object_id}" for start, end, object_id in self)

    def _with_between(self, start: int, end: int, object_id: int) -> StreamRanges:
        copied = self._copied()
        place = bisect_right(copied._starts, start)
        assert end <= copied._starts[place], (start, end, self)
        assert place == 0 or copied._ends[place - 1] <= start, (start, end, self)
        copied._starts.insert(place, start)
        copied._ends.insert(place, end)
        copied._ids.insert(place, object_id)
        copied._count += 1
        return copied

    def _copied(self) -> StreamRanges:
        alive = slice(self._head, self._count)
        return StreamRanges(self._starts[alive], self._ends[alive], self._ids[alive], 0, len(self))
