"""What becomes of the objects of one stream. Pure.

    dead     wholly below the stream's start: they go
    merge    small neighbours become one object, their blocks copied: up to the first one that makes it large
             enough, or a run of equals (choose.py) that is not yet
    link     large neighbours become one composite, without their data being touched; small ones between them
             are linked too, for nothing will ever come beside them
    prune    a composite whose links are mostly below the start is made anew without them

Neighbours are objects whose offsets continue each other; between others there is data in stream-set objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millrace.protocol.dataclass import dataclass
from millrace.s3stream.compaction.choose import RUN_COUNT_MIN, choose_run
from millrace.s3stream.compaction.config import CompactionSettings
from millrace.s3stream.ids import ObjectId, ObjectKind, StreamBounds, StreamObjectInfo

Objects = tuple[StreamObjectInfo, ...]
# In one commit.
DEAD_COUNT_MAX = 1000
# Objects of one composite. Each is a file to delete when the composite goes.
LINKS_COUNT_MAX = 5000
# A composite is made anew when so much of it is taken to be below the start, or half of it.
DEAD_BYTES_MAX = 512 << 20


@dataclass(frozen=True, slots=True)
class StreamPlan:
    dead: tuple[ObjectId, ...]
    merges: tuple[Objects, ...]
    links: tuple[Objects, ...]  # one composite alone: to be pruned

    def __bool__(self) -> bool:
        return bool(self.dead or self.merges or self.links)


def plan_stream(
    objects: Sequence[StreamObjectInfo], bounds: StreamBounds, settings: CompactionSettings
) -> StreamPlan:
    """`objects` in offset order, as metadata has them. Groups do not share objects."""
    dead = tuple(one.object_id for one in objects if one.end <= bounds.start)
    merges: list[Objects] = []
    links: list[Objects] = []
    for span in _neighbours([one for one in objects if one.end > bounds.start]):
        merged = [group for small in _small_spans(span, settings) for group in _merges(small, settings)]
        merges += merged
        taken = frozenset(one.object_id for group in merged for one in group)
        for rest in _neighbours([one for one in span if one.object_id not in taken]):
            links += _links(rest, settings)
    linked = frozenset(one.object_id for group in links for one in group)
    links += [(one,) for one in objects if one.object_id not in linked and is_mostly_dead(one, bounds.start)]
    return StreamPlan(dead[:DEAD_COUNT_MAX], tuple(merges), tuple(links))


def is_mostly_dead(one: StreamObjectInfo, start: int) -> bool:
    """As far as offsets tell."""
    if one.kind is not ObjectKind.COMPOSITE or not one.start < start < one.end:
        return False
    dead_bytes = one.size_bytes * (start - one.start) // (one.end - one.start)
    return dead_bytes > min(one.size_bytes // 2, DEAD_BYTES_MAX)


def _is_small(one: StreamObjectInfo, settings: CompactionSettings) -> bool:
    return one.kind is ObjectKind.STREAM and one.size_bytes < settings.small_bytes


def _neighbours(objects: Sequence[StreamObjectInfo]) -> Iterator[list[StreamObjectInfo]]:
    span: list[StreamObjectInfo] = []
    for one in objects:
        if span and span[-1].end != one.start:
            yield span
            span = []
        span.append(one)
    if span:
        yield span


def _small_spans(
    span: Sequence[StreamObjectInfo], settings: CompactionSettings
) -> Iterator[list[StreamObjectInfo]]:
    small: list[StreamObjectInfo] = []
    for one in span:
        if _is_small(one, settings):
            small.append(one)
        elif small:
            yield small
            small = []
    if small:
        yield small


def _merges(small: Sequence[StreamObjectInfo], settings: CompactionSettings) -> Iterator[Objects]:
    """Groups that become large enough, from the oldest; of what is left, a run of equals."""
    group: list[StreamObjectInfo] = []
    total_bytes = 0
    for one in small:
        group.append(one)
        total_bytes += one.size_bytes
        if len(group) > 1 and (total_bytes >= settings.small_bytes or len(group) >= settings.sources_max):
            yield tuple(group)
            group, total_bytes = [], 0
    sizes = [one.size_bytes for one in group]
    bounds = settings.sources_max, settings.object_bytes_max
    run = choose_run(sizes, *bounds, floor_bytes=settings.size_floor_bytes)
    if run is not None:
        yield tuple(group[run])


def _links(span: Sequence[StreamObjectInfo], settings: CompactionSettings) -> Iterator[Objects]:
    group: list[StreamObjectInfo] = []
    total_bytes = 0
    for one in span:
        if group and (
            total_bytes + one.size_bytes > settings.object_bytes_max or len(group) == LINKS_COUNT_MAX
        ):
            yield from _worth_linking(group, settings)
            group, total_bytes = [], 0
        group.append(one)
        total_bytes += one.size_bytes
    yield from _worth_linking(group, settings)


def _worth_linking(group: Sequence[StreamObjectInfo], settings: CompactionSettings) -> Iterator[Objects]:
    """Without the small ones at both ends, for they may find others to be merged with."""
    large = [place for place, one in enumerate(group) if not _is_small(one, settings)]
    if large and large[-1] - large[0] + 1 >= RUN_COUNT_MIN:
        yield tuple(group[large[0] : large[-1] + 1])
