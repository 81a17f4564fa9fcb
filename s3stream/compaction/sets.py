"""Compaction of the stream-set objects that are this node's to compact: what is of a size is merged, until
nothing is worth it; then what is old is looked into."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from millrace.runtime.scheduling.yielding import Yielding
from millrace.s3stream.compaction.aged import AgedLook, plan_aged
from millrace.s3stream.compaction.batch import AtOnce
from millrace.s3stream.compaction.choose import choose_sets
from millrace.s3stream.compaction.merging import merge
from millrace.s3stream.compaction.plan import Bounds, SetPlan, SourceIndex, plan_sets
from millrace.s3stream.compaction.work import Work


class SetCompactor:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._look = AgedLook(work.settings)

    async def round(self) -> bool:
        """Until nothing is worth it. Each step leaves fewer objects, or quarantines one, or passes some that
        are old."""
        self._work.counts.set_rounds += 1
        self._look.on_round()
        while await self._merge_equals():
            pass
        while await self._look_at_aged():
            pass
        return True

    def next_due_ms(self) -> int | None:
        """The wall time at which old objects are looked into though nothing changes."""
        return self._look.next_due_ms(self._work.stream_sets(), self._work.is_set_quarantined)

    async def _merge_equals(self) -> bool:
        work, settings = self._work, self._work.settings
        chosen = choose_sets(work.stream_sets(), work.is_set_quarantined, settings)
        planner = partial(plan_sets, settings=settings, split_bytes=settings.own_bytes_min)
        return bool(chosen) and await merge(work, chosen, planner, AtOnce(work))

    async def _look_at_aged(self) -> bool:
        """Whether there was one that had not been passed."""
        work = self._work
        objects = self._look.next_objects(work.stream_sets(), work.is_set_quarantined, work.clock.wall_ms())
        if not objects:
            return False
        plans: list[SetPlan | None] = []

        def planner(sources: Sequence[SourceIndex], bounds: Bounds) -> Yielding[SetPlan | None]:
            plans.append((yield from plan_aged(sources, bounds, work.settings)))
            return plans[-1]

        await merge(work, objects, planner, AtOnce(work), is_index_alone=True)
        if not any(map(work.is_set_quarantined, objects)):
            for plan in plans:
                self._look.on_passed(objects, plan)
        return True
