"""Carries a plan out: wanted blocks of the sources, by stream and offset, into the objects that the plan
names.

    sources ──(windows, verified)──► blocks in order ──► the set's output, or the stream's own
        ──(parts)──► store

Blocks are copied as they are, for they hold one stream each, and under their own checksums: nothing looks at
entries. Memory is bounded by the settings: six tenths for reading, the rest for parts that are gathered or on
their way.

On return every object is durable in the store and nothing is committed. Cancelling, or any error, aborts what
was begun; what was put is deleted by the controller when its ids run out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from millrace.s3stream.compaction.outputs import Output, PutMemory, WrittenObject
from millrace.s3stream.compaction.plan import Bounds, Portion, SetPlan, SourceIndex, merged_rows
from millrace.s3stream.compaction.sources import Source, begin_all
from millrace.s3stream.compaction.work import Ids, Work
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects.format import BlockRef
from millrace.s3stream.objects.joiner import ObjectJoiner

# Objects of streams that end while the next ones are copied.
ENDING_COUNT_MAX = 8
# The loop serves others after so many bytes were copied; each row costs as much as ROW_COST of them.
STEP_BYTES = 1 << 20
ROW_COST = 8192


class Copying:
    """`set_object` and `stream_objects` (in the order of the plan's split portions) are there once `run` has
    returned."""

    def __init__(self, work: Work, plan: SetPlan, sources: Sequence[Source], ids: Ids) -> None:
        self._work = work
        self._plan = plan
        self._sources = sources
        self._next_id = ids.first
        self._memory = PutMemory(work.settings.whole_bytes_max)
        self._live: list[Output] = []
        self._ending: deque[tuple[asyncio.Task[WrittenObject], int]] = deque()
        self._ending_bytes = 0
        self._set: Output | None = None
        self._own: Output | None = None
        self.set_object: WrittenObject | None = None
        self.stream_objects: list[WrittenObject] = []

    async def run(self, indexes: Sequence[SourceIndex], bounds: Bounds) -> None:
        try:
            plan, settings = self._plan, self._work.settings
            reading_bytes = settings.reading_bytes_of(has_set=plan.has_set, has_split=plan.split_count > 0)
            begin_all(self._sources, indexes, bounds, settings, reading_bytes)
            if plan.has_set:
                set_bytes = sum(one.size_bytes for one in plan.portions if not one.is_split)
                self._set = self._new_output(set_bytes, is_alone=not plan.split_count)
            await self._copy(indexes, bounds)
            await self._end_all()
        except BaseException:
            await self._abort()
            raise

    async def _copy(self, indexes: Sequence[SourceIndex], bounds: Bounds) -> None:
        portions = iter(self._plan.portions)
        portion: Portion | None = None
        cost = 0
        for place, ref in merged_rows(indexes, bounds):
            if portion is None or ref.stream_id != portion.stream_id or ref.start >= portion.end:
                portion = next(portions)
                await self._enter(portion)
            await self._add(portion, ref, *await self._sources[place].take(ref))
            cost += ref.size_bytes + ROW_COST
            if cost >= STEP_BYTES:
                cost = 0
                await asyncio.sleep(0)

    async def _add(self, portion: Portion, ref: BlockRef, data: memoryview, body_sum: int | None) -> None:
        output = self._own if portion.is_split else self._set
        assert output is not None
        await output.add(ref, data, body_sum)

    async def _enter(self, portion: Portion) -> None:
        if not portion.is_split:
            return
        if self._own is not None:
            await self._end(self._own)
        self._own = self._new_output(portion.size_bytes)

    def _new_output(self, size_bytes: int, *, is_alone: bool = False) -> Output:
        work, settings = self._work, self._work.settings
        object_id, self._next_id = self._next_id, ObjectId(self._next_id + 1)
        joiner = ObjectJoiner(settings.block_bytes, work.ownership.writer)
        part_bytes = settings.part_bytes_of(size_bytes, is_alone=is_alone)
        key, counts = work.key(object_id), work.counts
        output = Output(work.store, key, object_id, joiner, part_bytes, self._memory, counts, work.ownership)
        self._live.append(output)
        return output

    async def _end(self, output: Output) -> None:
        """Lets it end beside the copying; waits for the oldest when they are many, or hold much."""
        held_bytes = output.held_bytes
        bytes_max = self._work.settings.whole_bytes_max
        while self._ending and (
            len(self._ending) >= ENDING_COUNT_MAX or self._ending_bytes + held_bytes > bytes_max
        ):
            await self._ended()
        self._ending_bytes += held_bytes
        self._ending.append((asyncio.create_task(self._finished(output), name="compaction-put"), held_bytes))

    async def _end_all(self) -> None:
        if self._own is not None:
            await self._end(self._own)
        while self._ending:
            await self._ended()
        if self._set is not None:
            self.set_object = await self._finished(self._set)

    async def _ended(self) -> None:
        """In the order of their streams."""
        task, held_bytes = self._ending[0]
        self.stream_objects.append(await task)
        self._ending_bytes -= held_bytes
        self._ending.popleft()

    async def _finished(self, output: Output) -> WrittenObject:
        written = await output.finish()
        self._live.remove(output)
        return written

    async def _abort(self) -> None:
        for task, _ in self._ending:
            task.cancel()
        await asyncio.gather(*(task for task, _ in self._ending), return_exceptions=True)
        for output in self._live:
            await output.abort()
