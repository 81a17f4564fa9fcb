"""Compaction of this node's stream-set objects: what is old is split, what is of a size is merged, until nothing is worth it."""

from __future__ import annotations

from functools import partial

from millrace.s3stream.compaction.batch import AtOnce
from millrace.s3stream.compaction.choose import choose_aged, choose_sets, next_due_ms
from millrace.s3stream.compaction.merging import merge
from millrace.s3stream.compaction.plan import plan_sets
from millrace.s3stream.compaction.work import Work
from millrace.s3stream.ids import StreamSetInfo


class SetCompactor:
    def __init__(self, work: Work) -> None:
        self._work = work

    async def round(self) -> bool:
        """Until nothing is worth it. Each step leaves fewer objects, or puts one aside."""
        self._work.counts.set_rounds += 1
        while await self._step():
            pass
        return True

    def next_due_ms(self) -> int | None:
        """The wall time at which an object is old enough to be split."""
        return next_due_ms(self._objects(), self._is_aside, self._work.settings)

    async def _step(self) -> bool:
        work, settings = self._work, self._work.settings
        objects = self._objects()
        aged = choose_aged(objects, self._is_aside, settings, work.clock.wall_ms())
        chosen = aged or choose_sets(objects, self._is_aside, settings)
        if not chosen:
            return False
        planner = partial(plan_sets, settings=settings, is_forced=bool(aged))
        return await merge(work, chosen, planner, AtOnce(work))

    def _objects(self) -> list[StreamSetInfo]:
        """Each once, whatever the metadata says."""
        return list({one.object_id: one for one in self._work.catalog.stream_set_objects()}.values())

    def _is_aside(self, one: StreamSetInfo) -> bool:
        return self._work.is_aside(one.object_id)
