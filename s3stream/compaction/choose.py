"""Which objects to merge now. Pure.

Merging everything with everything at each look would write old bytes again and again. So an object is merged
with others of about its size: from the newest back, a run grows as long as the next older object is not much
larger than the largest so far. A run of stream-set objects has eight at least, so that each byte is written
twice among sixty uploads of equal size and three times among five hundred; what stays unmerged is seven of
each size at most:

    ages ->   64M 8M 1M 1M 1M 1M 1M 1M 1M 1M     run of eight: they become 8M
              64M 8M 8M                          too short a run
              64M 8M 8M 8M 8M 8M 8M 8M 8M        the last eight become 64M

Only neighbours in order of age are merged: what is between two objects is never older or newer than their
merger. An object that cannot be read now is quarantined, and parts its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from millrace.s3stream.compaction.config import MIB, CompactionSettings
from millrace.s3stream.ids import StreamSetInfo

T = TypeVar("T")
# A shorter run of one stream's objects is not worth its requests; of stream-set objects, see the settings.
RUN_COUNT_MIN = 4
# A run grows by an object that is no larger than so many times its largest.
GROWTH = 2


def choose_run(
    sizes: Sequence[int],
    count_max: int,
    bytes_max: int,
    count_min: int = RUN_COUNT_MIN,
    floor_bytes: int = MIB,
) -> slice | None:
    """The run to merge among neighbours from the oldest to the newest, or None; of a run that is too long the
    older part. Sizes below `floor_bytes` count as that."""
    sizes = [max(floor_bytes, size_bytes) for size_bytes in sizes]
    for last in range(len(sizes) - 1, count_min - 2, -1):
        first = _grown(sizes, last)
        end = _within(sizes, first, last + 1, count_max, bytes_max)
        if end - first >= count_min:
            return slice(first, end)
    return None


def _grown(sizes: Sequence[int], last: int) -> int:
    """Where the run begins that ends at `last`."""
    largest = sizes[last]
    first = last
    while first > 0 and sizes[first - 1] <= GROWTH * largest:
        first -= 1
        largest = max(largest, sizes[first])
    return first


def _within(sizes: Sequence[int], first: int, end: int, count_max: int, bytes_max: int) -> int:
    """How far the run goes that begins at `first`."""
    total_bytes = 0
    for place in range(first, min(end, first + count_max)):
        total_bytes += sizes[place]
        if total_bytes > bytes_max:
            return place
    return min(end, first + count_max)


def choose_sets(
    objects: Sequence[StreamSetInfo],
    is_quarantined: Callable[[StreamSetInfo], bool],
    settings: CompactionSettings,
) -> Sequence[StreamSetInfo]:
    """Stream-set objects to merge into one; none when nothing is worth it. `objects`: newest data last."""
    for span in reversed(_parted(objects, is_quarantined)):
        sizes = [one.size_bytes for one in span]
        bounds = settings.sources_max, settings.merge_bytes_max, settings.run_count
        found = choose_run(sizes, *bounds, settings.size_floor_bytes)
        if found is not None:
            return _within_memory(span[found], settings)
    return ()


def choose_aged(
    objects: Sequence[StreamSetInfo],
    is_quarantined: Callable[[StreamSetInfo], bool],
    settings: CompactionSettings,
    now_ms: int,
    after: int = -1,
) -> Sequence[StreamSetInfo]:
    """Stream-set objects that are to be looked into for their age, the oldest neighbours whose order ids are
    beyond `after`. With one that is due go those after it that are half as old: a stream has the more in
    them."""
    due_ms = now_ms - settings.force_split_ms
    soon_ms = now_ms - settings.force_split_ms // 2
    for span in _parted(
        objects, lambda one: one.data_time_ms > soon_ms or one.order_id <= after or is_quarantined(one)
    ):
        due = next((place for place, one in enumerate(span) if one.data_time_ms <= due_ms), None)
        if due is not None:
            sizes = [max(settings.size_floor_bytes, one.size_bytes) for one in span]
            end = _within(sizes, due, len(span), settings.sources_max, settings.merge_bytes_max)
            return _held_at_once(span[due : max(due + 1, end)], settings)
    return ()


def choose_beyond(
    objects: Sequence[StreamSetInfo],
    is_quarantined: Callable[[StreamSetInfo], bool],
    settings: CompactionSettings,
    after: int,
) -> Sequence[StreamSetInfo]:
    """The oldest neighbours whose order ids are beyond `after`, as many as can be looked into at once; none
    when there are no more."""
    spans = _parted(objects, lambda one: one.order_id <= after or is_quarantined(one))
    return _held_at_once(spans[0][: settings.sources_max], settings) if spans else ()


def _parted(objects: Sequence[T], is_quarantined: Callable[[T], bool]) -> list[list[T]]:
    """Neighbours that nothing stands between."""
    spans: list[list[T]] = [[]]
    for one in objects:
        if not is_quarantined(one):
            spans[-1].append(one)
        elif spans[-1]:
            spans.append([])
    return spans if spans[-1] else spans[:-1]


def _within_memory(span: Sequence[StreamSetInfo], settings: CompactionSettings) -> Sequence[StreamSetInfo]:
    """As many from the oldest as can be read at once, and no more than can be read in large requests, but for
    a shortest run."""
    span = _held_at_once(span, settings)
    read_bytes = 0
    for count, one in enumerate(span):
        read_bytes += min(one.size_bytes, settings.window_bytes_min)
        if count >= max(2, settings.run_count) and not settings.reads_well(read_bytes):
            return span[:count]
    return span


def _held_at_once(span: Sequence[StreamSetInfo], settings: CompactionSettings) -> Sequence[StreamSetInfo]:
    """As many from the oldest as there is memory for a block of each."""
    held_bytes = 0
    for count, one in enumerate(span):
        held_bytes += min(one.size_bytes, settings.block_bytes)
        if count >= 2 and held_bytes > settings.reading_bytes:
            return span[:count]
    return span
