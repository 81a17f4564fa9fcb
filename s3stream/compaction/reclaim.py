"""Makes room in a store that is full: ends this node's stream-set objects that are spent, the oldest first,
and nothing else.

One pass over all of them, by their indexes alone, as many at a time as there is memory for. What is spent,
and what becomes of it: spent.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.runtime.scheduling.yield_queue import run_yielding
from millrace.s3stream.compaction.batch import AtOnce
from millrace.s3stream.compaction.choose import choose_beyond
from millrace.s3stream.compaction.merging import bounds_of, carry_out, noting, opened
from millrace.s3stream.compaction.plan import Bounds, SetPlan, SourceIndex
from millrace.s3stream.compaction.sources import Source
from millrace.s3stream.compaction.spent import plan_spent
from millrace.s3stream.compaction.work import Work
from millrace.s3stream.ids import StreamSetInfo


class Reclaimer:
    def __init__(self, work: Work) -> None:
        self._work = work

    async def round(self) -> bool:
        """What was committed stays so, however the round ends."""
        work = self._work
        work.counts.reclaim_rounds += 1
        after = -1
        while objects := choose_beyond(work.stream_sets(), work.is_set_quarantined, work.settings, after):
            if await self._reclaim(objects):
                after = objects[-1].order_id
        return True

    async def _reclaim(self, objects: Sequence[StreamSetInfo]) -> bool:
        """Whether all were looked at; if not, some are quarantined now."""
        work, is_done = self._work, False
        async with noting(work, objects), opened(work, objects, is_index_alone=True) as (sources, indexes):
            if len(sources) == len(objects):
                bounds = await bounds_of(work, indexes)
                for plan in await run_yielding(plan_spent(indexes, bounds, work.settings)):
                    await self._carry_out(plan, sources, indexes, bounds)
                is_done = True
        return is_done

    async def _carry_out(
        self, plan: SetPlan, sources: Sequence[Source], indexes: Sequence[SourceIndex], bounds: Bounds
    ) -> None:
        work, ids = self._work, frozenset(plan.source_ids)
        taken = [source for source in sources if source.object_id in ids]
        await carry_out(
            work, plan, taken, [one for one in indexes if one.object_id in ids], bounds, AtOnce(work)
        )
        for source in taken:
            await source.close()
