"""StreamRanges: who holds what of one stream, as two packed columns, found by bisection.

From its start to its committed end a stream has no gap, so a range ends where the next begins and the last
one at the stream's end, which is not kept here: 16 bytes a range. Its holder is one number:

    id << 4            an object of this stream alone
    id << 4 | slots    a group (stream_set_groups.py): of its up to four stream-set objects those in these
                       slots (bits) may hold parts of the range
    OWED               no object: it is in an earlier owner's write-ahead log alone (owed_ranges.py)
    LOST               no object, and none will: that log was given up

A commit to the group that holds the stream's last range adds a slot to that range and no range: the columns
stay as they are.

Versions share their columns: a newer version may be longer (its ranges were appended in place behind what
older versions see) or start later, and each keeps the holder of its own last range. A version that is not the
newest of its columns copies them before it appends, so that a line of versions that was given up does no
harm.

Kept true: starts ascend; neighbours have different holders' ids, unless a commit of their ranges said
otherwise.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

HEAD_KEPT_MAX: Final = 64  # dropped ranges that may stay before the rest
SLOT_BITS: Final = 4
SLOTS: Final = (1 << SLOT_BITS) - 1

Holder = int
OWED: Final[int] = -2 << SLOT_BITS
LOST: Final[int] = -3 << SLOT_BITS
Piece = tuple[int, Holder]  # where it starts, who holds it
Span = tuple[int, int, Holder]


class StreamRanges:
    __slots__ = ("_count", "_head", "_holders", "_last", "_starts")

    def __init__(self, starts: array[int], holders: array[int], head: int, count: int, last: Holder) -> None:
        self._starts = starts
        self._holders = holders  # of all but the last range
        self._head = head  # the first range that is alive
        self._count = count  # behind the last
        self._last = last  # holder of the last range

    @classmethod
    def of(cls, start: int, holder: Holder) -> StreamRanges:
        return cls(array("q", (start,)), array("q", (holder,)), 0, 1, holder)

    @classmethod
    def of_pieces(cls, pieces: Iterable[Piece]) -> StreamRanges:
        """At least one, in order of starts."""
        starts, holders = array("q"), array("q")
        for start, holder in pieces:
            starts.append(start)
            holders.append(holder)
        return cls(starts, holders, 0, len(starts), holders[-1])

    @property
    def start(self) -> int:
        """Of the first range: at or below the stream's."""
        return self._starts[self._head]

    @property
    def last(self) -> Holder:
        return self._last

    def append(self, start: int, holder: Holder) -> StreamRanges:
        """With one more range, from `start`, where the last one ends."""
        assert start > self._starts[self._count - 1], (start, self)
        newest = self if len(self._starts) == self._count else self._copied()
        newest._holders[newest._count - 1] = self._last  # older versions of this length have their own
        newest._starts.append(start)
        newest._holders.append(holder)
        return StreamRanges(newest._starts, newest._holders, newest._head, newest._count + 1, holder)

    def with_last(self, holder: Holder) -> StreamRanges:
        """The last range held by another."""
        return StreamRanges(self._starts, self._holders, self._head, self._count, holder)

    def drop_below(self, offset: int, end: int) -> tuple[StreamRanges | None, list[Holder]]:
        """Without the ranges that end at or below `offset`, and whose they were. None when none is left.
        `end`: the stream's."""
        if offset >= end:
            return None, [holder for _, holder in self._pieces(self._head, self._count)]
        head = max(self._head, bisect_right(self._starts, offset, self._head, self._count) - 1)
        dropped = [holder for _, holder in self._pieces(self._head, head)]
        if not dropped:
            return self, dropped
        rest = StreamRanges(self._starts, self._holders, head, self._count, self._last)
        return (rest._copied() if head > max(HEAD_KEPT_MAX, self._count // 2) else rest), dropped

    def replaced(
        self, spans: Sequence[Span], stream_end: int, without: Callable[[Holder], Holder | None]
    ) -> tuple[StreamRanges, list[Holder], list[Holder]]:
        """With the spans' holders in [start, end) of each, where sources held it; and the holders that went
        and came, one a range.

        `spans`: all of the stream's at once, in order. A range that sources share with others may be cut by
        several: what is left of it between them is told from what comes next only when all are known.
        `without(other)`: what is left of a holder when the sources are gone; None when no source is in it, so
        that it keeps the range.
        """
        first = max(self._head, bisect_right(self._starts, spans[0][0], self._head, self._count) - 1)
        last = bisect_left(self._starts, min(spans[-1][1], stream_end), first, self._count)
        # One neighbour at each side: the new range may continue theirs.
        first, last = max(self._head, first - 1), min(self._count, last + 1)
        old = list(self._pieces(first, last))
        new: list[Piece] = []
        begun = 0  # spans before it end at or below the piece
        for index, (low, other) in enumerate(old, first):
            high = self._end_of(index, stream_end)
            while begun < len(spans) and spans[begun][1] <= low:
                begun += 1
            rest = without(other)
            if rest is None:
                _add(new, low, other)
                continue
            at = low
            for start, end, holder in islice(spans, begun, None):
                if start >= high:
                    break
                if at < start:
                    _add(new, at, rest)
                _add(new, max(at, start), holder)
                at = min(end, high)
            if at < high:
                _add(new, at, other if at == low else rest)
        if new == old:
            return self, [], []
        return self._spliced(first, last, new), [one[1] for one in old], [one[1] for one in new]

    def filled(self, span: Span, stream_end: int) -> tuple[StreamRanges, list[Holder], list[Holder]]:
        """With the span's holder where the span is owed; and the holders that went and came, as
        `replaced`."""
        return self.replaced([span], stream_end, _if_owed)

    def from_offset(self, offset: int, end: int) -> Iterator[tuple[int, int, Holder]]:
        """(start, end, holder) of the ranges from the one that holds `offset`; none when none does. `end`:
        the stream's."""
        if self.start <= offset < end:
            first = bisect_right(self._starts, offset, self._head, self._count) - 1
            for index, (start, holder) in enumerate(self._pieces(first, self._count), first):
                yield start, self._end_of(index, end), holder

    def all(self, end: int) -> Iterator[tuple[int, int, Holder]]:
        """(start, end, holder) of every range. `end`: the stream's."""
        return self.from_offset(self.start, end)

    def holders(self) -> list[Holder]:
        """Of every range."""
        return [*self._holders[self._head : self._count - 1], self._last]

    def __len__(self) -> int:
        return self._count - self._head

    @property
    def size_bytes(self) -> int:
        return 16 * len(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StreamRanges):
            return NotImplemented
        if self._last != other._last or len(self) != len(other):
            return False
        mine, theirs = slice(self._head, self._count), slice(other._head, other._count)
        if self._starts[mine] != other._starts[theirs]:
            return False
        mine, theirs = slice(self._head, self._count - 1), slice(other._head, other._count - 1)
        return self._holders[mine] == other._holders[theirs]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        pieces = self._pieces(self._head, self._count)
        return " ".join(f"{start}@{holder >> SLOT_BITS}/{holder & SLOTS:x}" for start, holder in pieces)

    def _pieces(self, first: int, last: int) -> Iterator[Piece]:
        for index in range(first, last):
            yield self._starts[index], self._last if index == self._count - 1 else self._holders[index]

    def _end_of(self, index: int, stream_end: int) -> int:
        return stream_end if index == self._count - 1 else self._starts[index + 1]

    def _spliced(self, first: int, last: int, new: list[Piece]) -> StreamRanges:
        starts, holders = self._starts[self._head : self._count], self._holders[self._head : self._count]
        holders[-1] = self._last
        window = slice(first - self._head, last - self._head)
        starts[window] = array("q", (start for start, _ in new))
        holders[window] = array("q", (holder for _, holder in new))
        return StreamRanges(starts, holders, 0, len(starts), holders[-1])

    def _copied(self) -> StreamRanges:
        alive = slice(self._head, self._count)
        return StreamRanges(self._starts[alive], self._holders[alive], 0, len(self), self._last)


def _if_owed(holder: Holder) -> Holder | None:
    return holder if holder == OWED else None


def _add(pieces: list[Piece], start: int, holder: Holder) -> None:
    """A piece of the same object or group as the one before it continues that one."""
    if pieces and pieces[-1][1] >> SLOT_BITS == holder >> SLOT_BITS:
        pieces[-1] = pieces[-1][0], pieces[-1][1] | holder
    else:
        pieces.append((start, holder))
