"""Which stream-set objects are spent, so that next to nothing has to be put for them to go: what makes room
in a store that is full. Pure.

    indexes ──► nothing is wanted      all such in one plan, without a successor
            ──► a little is wanted     neighbours in one plan, as many as leave a small object behind
            ──► more is                left alone: the usual rounds see to it once there is room

A full store has room for small objects (runtime/objectstore/folder.py), and for these as long as each makes
more than it takes: a source is spent when half of it goes at least, and a plan is one when it gains
`GAIN_BYTES_MIN`. So what a plan has made is no source of the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.protocol.dataclass import dataclass
from millrace.runtime.scheduling.yielding import Yielding
from millrace.s3stream.compaction.config import CompactionSettings
from millrace.s3stream.compaction.plan import STEP_ROWS, Bounds, SetPlan, SourceIndex, plan_sets
from millrace.s3stream.objects.format import FOOTER_BYTES, INDEX_HEADER_BYTES, INT64_MAX, ROW, ROW_BYTES

# An object that is made, whole. No more than what a directory on a full disk takes for small.
MADE_BYTES_MAX = 256 << 10
# What a plan that puts something ends at least, beside what it puts.
GAIN_BYTES_MIN = 64 << 10
_LEFT_BYTES_MAX = MADE_BYTES_MAX - INDEX_HEADER_BYTES - FOOTER_BYTES


@dataclass(frozen=True, slots=True)
class Remainder:
    """`left_bytes`: what is wanted of the source, with its rows; of one that is not spent no more than that
    it is too much."""

    source: SourceIndex
    left_bytes: int

    @property
    def is_spent(self) -> bool:
        return self.left_bytes <= min(_LEFT_BYTES_MAX, self.source.index.blocks_end // 2)


def plan_spent(
    sources: Sequence[SourceIndex], bounds: Bounds, settings: CompactionSettings
) -> Yielding[list[SetPlan]]:
    """`sources` are neighbours, the oldest first. The plans have no source in common; that without a
    successor comes first."""
    found: list[Remainder] = []
    for source in sources:
        found.append(Remainder(source, (yield from _left_bytes(source, bounds))))
    dead = tuple(one.source.object_id for one in found if not one.left_bytes)
    plans = [SetPlan(dead, ())] if dead else []
    rest = [one for one in found if one.left_bytes]
    while rest:
        run = _spent_run(rest)
        plan = yield from _plan_run([one.source for one in run], bounds, settings)
        count = max(1, len(run)) if plan is None else len(plan.source_ids)
        if plan is not None and _gain_bytes(plan, run) >= GAIN_BYTES_MIN:
            plans.append(plan)
        rest = rest[count:]
    return plans


def _left_bytes(source: SourceIndex, bounds: Bounds) -> Yielding[int]:
    left_bytes = 0
    for number, (stream_id, start, delta, _, _, size_bytes) in enumerate(
        ROW.iter_unpack(source.index.encoded)
    ):
        if not number % STEP_ROWS:
            yield
        found = bounds.get(stream_id)
        if found is not None and start + delta > found.start:
            left_bytes += size_bytes + ROW_BYTES
            if left_bytes > _LEFT_BYTES_MAX:
                break
    return left_bytes


def _spent_run(rest: Sequence[Remainder]) -> Sequence[Remainder]:
    """Those it begins with that are spent and leave a small object together; none when the first is not."""
    left_bytes = 0
    for count, one in enumerate(rest):
        left_bytes += one.left_bytes
        if not one.is_spent or left_bytes > _LEFT_BYTES_MAX:
            return rest[:count]
    return rest


def _plan_run(
    sources: Sequence[SourceIndex], bounds: Bounds, settings: CompactionSettings
) -> Yielding[SetPlan | None]:
    """For as many from the oldest as become one object: where a stream has a gap among them, it would get
    objects of its own."""
    while sources:
        plan = yield from plan_sets(sources, bounds, settings, split_bytes=INT64_MAX)
        if plan is None or not plan.split_count:
            return plan
        sources = sources[: len(sources) // 2]
    return None


def _gain_bytes(plan: SetPlan, run: Sequence[Remainder]) -> int:
    """Plans are made of the first of a run."""
    gone_bytes = sum(one.source.index.blocks_end for one in run[: len(plan.source_ids)])
    return gone_bytes - sum(portion.size_bytes for portion in plan.portions)
