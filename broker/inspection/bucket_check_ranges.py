"""What the objects of a stream hold, laid side by side: offsets that lie in none, with the reason, and
offsets that lie in two. Pure.

A stream's metadata names, for each range of it, one object or a few together; which of the few has what
stands in their own indexes alone. Who had the offsets of a gap is told by elimination: of uploads, which hold
a stream in the order in which they are named, it is who stands between those that have what lies beside the
gap; else whoever could not be read, or has nothing there that no other has. A reason says of each what is
known of it: that it is missing, or that it was read and the offsets are not in it.

Not here: how indexes are read, what becomes of the findings (bucket_check.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from millrace.broker.inspection.inventory import Held, KnownStream
from millrace.protocol.dataclass import dataclass
from millrace.s3stream.ids import ObjectId, StreamId
from millrace.s3stream.objects.composite import Link
from millrace.s3stream.objects.format import BlockRef

Span = tuple[StreamId, int, int]  # (stream, start, end)
Spans = list[Span]  # rows that continue each other joined
NO_OBJECT = "metadata names no object for it"
Piece = tuple[int, int, int]  # (start, end, place of the object among those that are named)


@dataclass(frozen=True, slots=True)
class Fault:
    """[start, end) of a stream: in no object when `object_id` is negative, else in this one as well as in
    another."""

    start: int
    end: int
    what: str
    object_id: int = -1


@dataclass(slots=True)
class Contents:
    """By object: what it holds by its own index; why it could not be told; of a composite what it links."""

    spans: dict[ObjectId, Spans] = field(default_factory=dict)
    unread: dict[ObjectId, str] = field(default_factory=dict)  # "is missing"
    links: dict[ObjectId, Sequence[Link]] = field(default_factory=dict)

    def of(self, object_id: ObjectId, stream_id: StreamId, start: int, end: int) -> Iterator[tuple[int, int]]:
        """What of [start, end) of the stream is in the object, or in those that it links."""
        for link in self.links.get(object_id, ()):
            if link.object_id in self.unread:
                continue
            spans = self.spans.get(link.object_id, [(stream_id, link.start, link.end)])
            yield from _within(spans, stream_id, max(start, link.start), min(end, link.end))
        yield from _within(self.spans.get(object_id, ()), stream_id, start, end)

    def reason(self, object_id: ObjectId, start: int, end: int) -> str:
        """Why [start, end), which metadata says is in the object, is not."""
        if object_id in self.unread:
            return f"object {object_id} {self.unread[object_id]}"
        links = [link for link in self.links.get(object_id, ()) if link.start < end and start < link.end]
        linked = f"which composite {object_id} links"
        told = [
            f"object {link.object_id}, {linked}, {self.unread[link.object_id]}"
            for link in links
            if link.object_id in self.unread
        ]
        told = told or [f"not in object {link.object_id}, {linked} for it" for link in links]
        return "; ".join(told) or f"not in object {object_id}, which metadata names for it"


def faults_of(stream: KnownStream, contents: Contents) -> Iterator[Fault]:
    """From the stream's start to its end, in order."""
    expected = stream.start
    for held in stream.held:
        if held.start > expected:
            yield Fault(expected, held.start, NO_OBJECT)
        expected = max(expected, held.start)
        if held.object_ids:  # else it is owed by a write-ahead log, or was given up by an operator's word
            yield from _faults_within(stream.stream_id, held, expected, contents)
        expected = max(expected, held.end)
    if expected < stream.end:
        yield Fault(expected, stream.end, NO_OBJECT)


def _faults_within(stream_id: StreamId, held: Held, start: int, contents: Contents) -> Iterator[Fault]:
    pieces = sorted(
        (low, high, place)
        for place, object_id in enumerate(held.object_ids)
        for low, high in contents.of(ObjectId(object_id), stream_id, start, held.end)
    )
    gaps: list[tuple[int, int]] = []
    expected, last = start, -1
    for low, high, place in pieces:
        if low > expected:
            gaps.append((expected, low))
        if low < expected:
            also = f"object {held.object_ids[last]} has them too"
            yield Fault(low, min(high, expected), also, held.object_ids[place])
        if high > expected:
            expected, last = high, place
    if expected < held.end:
        gaps.append((expected, held.end))
    for (low, high), places in zip(gaps, _suspects(held, pieces, gaps), strict=True):
        yield Fault(low, high, _why(held, places, low, high, contents))


def _why(held: Held, places: Sequence[int], start: int, end: int, contents: Contents) -> str:
    suspects = [held.object_ids[place] for place in places]
    if not suspects:
        suspects = [one for one in held.object_ids if one not in contents.unread] or list(held.object_ids)
    return "; ".join(contents.reason(one, start, end) for one in suspects) or NO_OBJECT


def _suspects(held: Held, pieces: Sequence[Piece], gaps: Sequence[tuple[int, int]]) -> list[Sequence[int]]:
    """For each gap the places of those that may have had it; none when all that are named have something
    else."""
    if not held.is_ordered:
        return [_idle(held, pieces)] * len(gaps)
    count = len(held.object_ids)
    windows = [_between(pieces, start, end, count) for start, end in gaps]
    # Who alone had a gap has lost what it was written with: what it has now, a copy of another's, says
    # nothing of the order.
    strays = {window[0] for window in windows if len(window) == 1}
    rest = [piece for piece in pieces if piece[2] not in strays]
    return [_between(rest, start, end, count) for start, end in gaps]


def _between(pieces: Sequence[Piece], start: int, end: int, count: int) -> range:
    """The places between the nearest neighbours. Where two have the same (one is a copy of the other), the
    farther one counts."""
    before = max((high for _, high, _ in pieces if high <= start), default=-1)
    after = min((low for low, _, _ in pieces if low >= end), default=-1)
    lower = min((place for _, high, place in pieces if high == before), default=-1)
    upper = max((place for low, _, place in pieces if low == after), default=count)
    return range(lower + 1, upper)


def _idle(held: Held, pieces: Sequence[Piece]) -> list[int]:
    """The places whose objects have nothing that no other has."""
    useful = {
        place
        for low, high, place in pieces
        if not any(other != place and left <= low and high <= right for left, right, other in pieces)
    }
    return [place for place in range(len(held.object_ids)) if place not in useful]


def _within(spans: Iterable[Span], stream_id: StreamId, start: int, end: int) -> Iterator[tuple[int, int]]:
    for one, low, high in spans:
        if one == stream_id and high > start and low < end:
            yield max(low, start), min(high, end)


def joined(rows: Iterable[BlockRef]) -> Iterator[Span]:
    """Rows of a stream that continue each other as one; rows are by (stream, start)."""
    last: Span | None = None
    for row in rows:
        if last is not None and last[0] == row.stream_id and last[2] == row.start:
            last = (last[0], last[1], row.end)
            continue
        if last is not None:
            yield last
        last = (row.stream_id, row.start, row.end)
    if last is not None:
        yield last
