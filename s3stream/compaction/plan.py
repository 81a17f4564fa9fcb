"""What becomes of stream-set objects, given their indexes: which streams get objects of their own, which stay
together. Pure.

    rows of the sources ──► without what is trimmed or deleted ──► by (stream, start)
        ──► portions: each goes to one object

A portion is a piece of a stream without a gap. It gets an object of its own when it has `split_bytes` or
more, or when a gap follows: a stream-set object holds one piece of a stream. Nothing is planned from an index
that was not read: a source whose index is missing is no source.

Kept true: every row that is wanted lies in one portion; `find_uncovered` checks against the rows themselves,
after the fact, that what was written covers them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from millrace.protocol.dataclass import dataclass
from millrace.runtime.scheduling.yielding import Yielding
from millrace.s3stream.compaction.config import CompactionSettings
from millrace.s3stream.ids import ObjectId, StreamBounds, StreamId, StreamRange
from millrace.s3stream.objects.format import ROW, BlockRef
from millrace.s3stream.objects.index import ObjectIndex

Bounds = Mapping[StreamId, StreamBounds]
# What looks at every row of large indexes stops after so many of them, one to two milliseconds, for others to
# run.
STEP_ROWS = 256


class SourcesOverlap(Exception):
    """Two sources hold the same offsets of a stream: one of them should not be there, and nobody here can
    tell which."""

    def __init__(self, object_ids: tuple[ObjectId, ObjectId], found: BlockRef) -> None:
        super().__init__(object_ids, found)
        self.object_ids = object_ids
        self.found = found

    def __str__(self) -> str:
        return (
            f"objects {self.object_ids} both hold stream {self.found.stream_id} at offset {self.found.start}"
        )


@dataclass(frozen=True, slots=True)
class SourceIndex:
    """A source as the plan sees it."""

    object_id: ObjectId
    index: ObjectIndex


@dataclass(frozen=True, slots=True)
class Portion:
    """[start, end) of a stream. `is_split`: it gets an object of its own; the others share the new stream-set
    object."""

    stream_id: StreamId
    start: int
    end: int
    size_bytes: int
    is_split: bool


@dataclass(frozen=True, slots=True)
class SetPlan:
    """`portions` by (stream, start). None: nothing of the sources is wanted, and they go without a
    successor."""

    source_ids: tuple[ObjectId, ...]
    portions: tuple[Portion, ...]

    @property
    def split_count(self) -> int:
        return sum(1 for portion in self.portions if portion.is_split)

    @property
    def has_set(self) -> bool:
        return any(not portion.is_split for portion in self.portions)

    @property
    def objects_count(self) -> int:
        return self.split_count + self.has_set


def streams_of(sources: Iterable[SourceIndex]) -> list[StreamId]:
    found: dict[StreamId, None] = {}
    for source in sources:
        for row in ROW.iter_unpack(source.index.encoded):
            found[StreamId(row[0])] = None
    return list(found)


def wanted_rows(source: SourceIndex, bounds: Bounds) -> Iterator[BlockRef]:
    """Rows of one source that hold something that is not trimmed, of streams that exist, by (stream,
    start)."""
    stream_id, start = -1, None
    for ref in source.index.rows():
        if ref.stream_id != stream_id:
            stream_id = ref.stream_id
            found = bounds.get(ref.stream_id)
            start = None if found is None else found.start
        if start is not None and ref.end > start:
            yield ref


def merged_rows(sources: Sequence[SourceIndex], bounds: Bounds) -> Iterator[tuple[int, BlockRef]]:
    """Wanted rows of all sources by (stream, start), each with its source's place. Raises SourcesOverlap."""

    def keyed(place: int, source: SourceIndex) -> Iterator[tuple[int, int, int, BlockRef]]:
        for ref in wanted_rows(source, bounds):
            yield ref.stream_id, ref.start, place, ref

    last: BlockRef | None = None
    last_place = 0
    for _, _, place, ref in heapq.merge(*(keyed(place, source) for place, source in enumerate(sources))):
        if last is not None and last.stream_id == ref.stream_id and ref.start < last.end:
            raise SourcesOverlap((sources[last_place].object_id, sources[place].object_id), ref)
        yield place, ref
        last, last_place = ref, place


def plan_sets(
    sources: Sequence[SourceIndex], bounds: Bounds, settings: CompactionSettings, *, split_bytes: int
) -> Yielding[SetPlan | None]:
    """A plan for the sources, or for the older half of them and so on until it is within limits; None when it
    would change nothing.

    One source alone is always within limits: what does not fit into the commit as objects of its own stays in
    the new set.
    """
    count = len(sources)
    while True:
        taken = sources[:count]
        found = yield from _portions(taken, bounds, split_bytes)
        portions = _limited(found, settings)
        if count == 1 or _is_within(portions, taken, settings):
            break
        count //= 2
    plan = SetPlan(tuple(source.object_id for source in taken), tuple(portions))
    is_idle = count == 1 and plan.has_set and not plan.split_count
    return None if is_idle and not _drops_something(taken[0], portions) else plan


def _portions(sources: Sequence[SourceIndex], bounds: Bounds, split_bytes: int) -> Yielding[list[Portion]]:
    portions: list[Portion] = []
    stream_id, start, end, size_bytes = StreamId(-1), 0, 0, 0

    def close(*, is_gap: bool) -> None:
        if end > start:
            portions.append(Portion(stream_id, start, end, size_bytes, is_gap or size_bytes >= split_bytes))

    for number, (_, ref) in enumerate(merged_rows(sources, bounds)):
        if not number % STEP_ROWS:
            yield
        if ref.stream_id != stream_id or ref.start != end:
            close(is_gap=ref.stream_id == stream_id)
            stream_id, start, size_bytes = ref.stream_id, ref.start, 0
        end = ref.end
        size_bytes += ref.size_bytes
    close(is_gap=False)
    return portions


def _limited(portions: list[Portion], settings: CompactionSettings) -> list[Portion]:
    """With no more splits than a commit may have, where that can be: the smallest stay in the set, but for
    pieces before a gap."""
    excess = sum(1 for portion in portions if portion.is_split) - _splits_max(settings)
    if excess <= 0:
        return portions
    last = {portion.stream_id: place for place, portion in enumerate(portions)}
    free = [place for place in last.values() if portions[place].is_split]
    free.sort(key=lambda place: portions[place].size_bytes)
    limited = list(portions)
    for place in free[:excess]:
        limited[place] = replace(limited[place], is_split=False)
    return limited


def _is_within(
    portions: Sequence[Portion], sources: Sequence[SourceIndex], settings: CompactionSettings
) -> bool:
    """The new set may have as many streams as one of the sources: sets of more streams than the setting are
    merged like others."""
    splits = sum(1 for portion in portions if portion.is_split)
    stays = len(portions) - splits
    if splits > _splits_max(settings):
        return False
    return stays <= settings.streams_per_set_max or stays <= max(
        len(streams_of([source])) for source in sources
    )


def _splits_max(settings: CompactionSettings) -> int:
    """One id is for the set."""
    return settings.stream_objects_per_commit_max - 1


def _drops_something(source: SourceIndex, portions: Sequence[Portion]) -> bool:
    """Whether at least half of the object is wanted no more: then it is worth writing anew."""
    return 2 * sum(portion.size_bytes for portion in portions) <= source.index.blocks_end


def find_trimmed(sources: Sequence[SourceIndex], bounds: Bounds) -> Yielding[tuple[StreamId, ...]]:
    """Streams that exist, and of which the sources hold nothing but what was trimmed. By the rows, not by the
    plan."""
    is_wanted: dict[StreamId, bool] = {}
    for source in sources:
        yield
        for stream_id, start, delta, _, _, _ in ROW.iter_unpack(source.index.encoded):
            if not is_wanted.get(stream_id) and (found := bounds.get(stream_id)) is not None:
                is_wanted[stream_id] = start + delta > found.start
    return tuple(stream_id for stream_id, one in is_wanted.items() if not one)


def find_uncovered(
    sources: Sequence[SourceIndex], bounds: Bounds, written: Iterable[StreamRange]
) -> Yielding[StreamRange | None]:
    """A wanted row of the sources that no written range covers, or None when all are covered. By the rows,
    not by the plan."""
    covered = _united(written)
    nothing: tuple[list[int], list[int]] = ([], [])
    for source in sources:
        yield
        for number, (stream_id, start, delta, _, _, _) in enumerate(ROW.iter_unpack(source.index.encoded)):
            found, end = bounds.get(stream_id), start + delta
            if found is None or end <= found.start:
                continue
            starts, ends = covered.get(stream_id, nothing)
            place = bisect_right(starts, max(start, found.start)) - 1
            if place < 0 or end > ends[place]:
                return StreamRange(stream_id, start, end)
            if not number % STEP_ROWS:
                yield
    return None


def _united(ranges: Iterable[StreamRange]) -> dict[StreamId, tuple[list[int], list[int]]]:
    """Starts and ends of what the ranges cover together, by stream."""
    united: dict[StreamId, tuple[list[int], list[int]]] = {}
    for span in sorted(ranges, key=lambda span: (span.stream_id, span.start)):
        starts, ends = united.setdefault(span.stream_id, ([], []))
        if ends and span.start <= ends[-1]:
            ends[-1] = max(ends[-1], span.end)
        else:
            starts.append(span.start)
            ends.append(span.end)
    return united
