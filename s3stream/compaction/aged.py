"""A look at the stream-set objects that are aged: when there is one, how far it came, what is worth writing
anew. Pure.

    aged objects, the oldest first ──► as many as fit into memory ──► their indexes
        ──► all of them, or the first half that is worth it,
                                                                                        or the first of its
                                                                                        halves, down to one
                                                                                        object

They are worth it when half of what they hold goes: because it was trimmed or deleted, or because its stream
has enough in them for an object that is never copied again. What is little stays where it is, however old: an
object for each stream would be a request for each. So each byte that is copied to stay is paid for by one
that goes, and no more than half of an aged object is wanted by nobody for long.

A look passes each object once, and reads no more than its index when there is nothing to do. The next one
begins an interval later, if something changed or got old.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from millrace.runtime.scheduling.yielding import Yielding
from millrace.s3stream.compaction.choose import choose_aged
from millrace.s3stream.compaction.config import CompactionSettings
from millrace.s3stream.compaction.plan import STEP_ROWS, Bounds, SetPlan, SourceIndex, plan_sets
from millrace.s3stream.ids import StreamId, StreamSetInfo
from millrace.s3stream.objects.format import ROW


class AgedLook:
    """Times are those of the wall, in ms."""

    def __init__(self, settings: CompactionSettings) -> None:
        self._settings = settings
        self._ended_ms: int | None = None
        # the order id of the newest object that this look has passed; None: no look
        self._passed: int | None = None
        self._is_wanted = True

    def on_round(self) -> None:
        """Something changed: what was looked at before is to be looked at again, in its time."""
        self._is_wanted = True

    def next_objects(
        self, objects: Sequence[StreamSetInfo], is_quarantined: Callable[[StreamSetInfo], bool], now_ms: int
    ) -> Sequence[StreamSetInfo]:
        """Those whose indexes are to be read now. None: there is no look yet, or it has come to its end."""
        if self._ended_ms is not None:
            self._ended_ms = min(self._ended_ms, now_ms)  # somebody may have set the clock back
            if now_ms < self._ended_ms + self._settings.force_split_ms:
                return ()
        after = -1 if self._passed is None else self._passed
        found = choose_aged(objects, is_quarantined, self._settings, now_ms, after)
        if not found and self._passed is not None:
            self._ended_ms, self._passed, self._is_wanted = now_ms, None, False
        return found

    def on_passed(self, objects: Sequence[StreamSetInfo], plan: SetPlan | None) -> None:
        """The plan for them was carried out, and what it left out for it lies behind them is still to come;
        None: nothing was worth it."""
        last_id = objects[-1].object_id if plan is None else plan.source_ids[-1]
        self._passed = next(one.order_id for one in objects if one.object_id == last_id)

    def next_due_ms(
        self, objects: Sequence[StreamSetInfo], is_quarantined: Callable[[StreamSetInfo], bool]
    ) -> int | None:
        """When the next look begins though nothing changes."""
        interval_ms, ended_ms = self._settings.force_split_ms, self._ended_ms
        times = [one.data_time_ms + interval_ms for one in objects if not is_quarantined(one)]
        if ended_ms is None:
            return min(times, default=None)
        due_ms = min((at_ms for at_ms in times if self._is_wanted or at_ms > ended_ms), default=None)
        return None if due_ms is None else max(due_ms, ended_ms + interval_ms)


def plan_aged(
    sources: Sequence[SourceIndex], bounds: Bounds, settings: CompactionSettings
) -> Yielding[SetPlan | None]:
    """For the sources, or those neighbours among them that are worth it; None when none are."""
    weights: list[Weight] = []
    for source in sources:
        weights.append((yield from _weigh(source, bounds)))
    start = 0
    while True:
        found = yield from _find_worth(weights[start:], settings.small_bytes)
        if found is None:
            return None
        first, end = start + found.start, start + found.stop
        plan = yield from plan_sets(sources[first:end], bounds, settings, split_bytes=settings.small_bytes)
        if plan is not None:
            return plan
        start = (
            first + 1
        )  # within limits it would have been the first alone, which loses nothing: those behind it may


class Weight:
    """Bytes of some sources: all, and of each stream what is wanted."""

    __slots__ = ("all_bytes", "by_stream")

    def __init__(self, all_bytes: int, by_stream: dict[StreamId, int]) -> None:
        self.all_bytes = all_bytes
        self.by_stream = by_stream


def _weigh(source: SourceIndex, bounds: Bounds) -> Yielding[Weight]:
    by_stream: dict[StreamId, int] = {}
    all_bytes = 0
    for number, (stream_id, start, delta, _, _, size_bytes) in enumerate(
        ROW.iter_unpack(source.index.encoded)
    ):
        if not number % STEP_ROWS:
            yield
        all_bytes += size_bytes
        found = bounds.get(stream_id)
        if found is not None and start + delta > found.start:
            by_stream[stream_id] = by_stream.get(stream_id, 0) + size_bytes
    return Weight(all_bytes, by_stream)


def _find_worth(weights: Sequence[Weight], split_bytes: int) -> Yielding[slice | None]:
    """The first that are, of all, of their halves, of the halves of those: without those at both ends that
    lose nothing."""
    waiting = [(0, len(weights))]
    while waiting:
        start, end = waiting.pop()
        by_stream = yield from _joined(weights[start:end])
        stays = []
        for one in weights[start:end]:
            stays.append(_stays_bytes(one, by_stream, split_bytes))
            yield
        if 2 * sum(stays) <= sum(one.all_bytes for one in weights[start:end]):
            losing = [
                start + place
                for place, size_bytes in enumerate(stays)
                if size_bytes < weights[start + place].all_bytes
            ]
            return slice(losing[0], losing[-1] + 1)
        middle = (start + end) // 2
        if start < middle:
            waiting += [(middle, end), (start, middle)]
    return None


def _joined(weights: Sequence[Weight]) -> Yielding[dict[StreamId, int]]:
    by_stream: dict[StreamId, int] = {}
    for one in weights:
        for number, (stream_id, size_bytes) in enumerate(one.by_stream.items()):
            if not number % STEP_ROWS:
                yield
            by_stream[stream_id] = by_stream.get(stream_id, 0) + size_bytes
    return by_stream


def _stays_bytes(one: Weight, by_stream: Mapping[StreamId, int], split_bytes: int) -> int:
    """Of streams that have too little in all of them."""
    return sum(
        size_bytes for stream_id, size_bytes in one.by_stream.items() if by_stream[stream_id] < split_bytes
    )
