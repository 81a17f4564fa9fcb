"""Which objects to merge now. Pure.

Merging everything with everything at each look would write old bytes again and again. So an object is merged only with as much as it is large
itself: from the newest back, a run grows as long as the next older object is not much larger than what the run holds. Each byte is then written
four times among a thousand uploads of about equal size, and what stays unmerged is a few objects of growing size:

    ages ->   64M 8M 1M 1M 1M 1M     run of four: they become 4M
              64M 8M 4M              too short a run
              64M 8M 4M 4M 4M        the last four become 20M

Only neighbours in order of age are merged: what is between two objects is never older or newer than their merger. An object that cannot be
read now stands aside, and parts its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from millrace.s3stream.compaction.config import MIB, CompactionSettings
from millrace.s3stream.ids import StreamSetInfo

T = TypeVar("T")
# A shorter run is not worth its requests.
RUN_COUNT_MIN = 4
# A run grows by an object that is no larger than this part of what it holds.
GROWTH = (3, 2)
# Objects below this count as this: a few requests, whatever they hold.
SIZE_FLOOR_BYTES = MIB


def choose_run(sizes: Sequence[int], count_max: int, bytes_max: int) -> slice | None:
    """The run to merge among neighbours from the oldest to the newest, or None."""
    for last in range(len(sizes) - 1, RUN_COUNT_MIN - 2, -1):
        first = _grown(sizes, last, count_max, bytes_max)
        if last - first + 1 >= RUN_COUNT_MIN:
            return slice(first, last + 1)
    return None


def _grown(sizes: Sequence[int], last: int, count_max: int, bytes_max: int) -> int:
    """Where the run begins that ends at `last`."""
    held_bytes = max(SIZE_FLOOR_BYTES, sizes[last])
    first = last
    while first > 0 and last - first + 1 < count_max:
        older_bytes = max(SIZE_FLOOR_BYTES, sizes[first - 1])
        if older_bytes * GROWTH[1] > held_bytes * GROWTH[0] or held_bytes + older_bytes > bytes_max:
            break
        held_bytes += older_bytes
        first -= 1
    return first


def choose_sets(
    objects: Sequence[StreamSetInfo], is_aside: Callable[[StreamSetInfo], bool], settings: CompactionSettings
) -> Sequence[StreamSetInfo]:
    """Stream-set objects to merge into one; none when nothing is worth it. `objects`: newest data last."""
    for span in reversed(_parted(objects, is_aside)):
        found = choose_run([one.size_bytes for one in span], settings.sources_max, settings.object_bytes_max)
        if found is not None:
            return _within_memory(span[found], settings)
    return ()


def choose_aged(
    objects: Sequence[StreamSetInfo],
    is_aside: Callable[[StreamSetInfo], bool],
    settings: CompactionSettings,
    now_ms: int,
) -> Sequence[StreamSetInfo]:
    """Stream-set objects whose streams are due to get objects of their own, the oldest neighbours."""
    due_ms = now_ms - settings.force_split_ms
    spans = _parted(objects, lambda one: one.data_time_ms > due_ms or is_aside(one))
    if not spans:
        return ()
    count, total_bytes = 1, spans[0][0].size_bytes
    for one in spans[0][1 : settings.sources_max]:
        total_bytes += one.size_bytes
        if total_bytes > settings.object_bytes_max:
            break
        count += 1
    return _within_memory(spans[0][:count], settings)


def next_due_ms(
    objects: Sequence[StreamSetInfo], is_aside: Callable[[StreamSetInfo], bool], settings: CompactionSettings
) -> int | None:
    """When the next object is old enough to be split."""
    times = [one.data_time_ms for one in objects if not is_aside(one)]
    return min(times) + settings.force_split_ms if times else None


def _parted(objects: Sequence[T], is_aside: Callable[[T], bool]) -> list[list[T]]:
    """Neighbours that nothing stands between."""
    spans: list[list[T]] = [[]]
    for one in objects:
        if not is_aside(one):
            spans[-1].append(one)
        elif spans[-1]:
            spans.append([])
    return spans if spans[-1] else spans[:-1]


def _within_memory(span: Sequence[StreamSetInfo], settings: CompactionSettings) -> Sequence[StreamSetInfo]:
    """As many from the oldest as can be read at once."""
    left = settings.large_sources_max * settings.block_bytes
    for count, one in enumerate(span):
        left -= min(one.size_bytes, settings.block_bytes)
        if left < 0 and count >= 2:
            return span[:count]
    return span
