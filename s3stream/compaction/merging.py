"""Opens sources, copies what is wanted of them, checks that all of it was written, commits. For sets and for
streams alike."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from millrace.runtime.scheduling.yield_queue import run_yielding
from millrace.runtime.scheduling.yielding import Yielding
from millrace.s3stream.compaction.batch import Committing
from millrace.s3stream.compaction.copying import Copying
from millrace.s3stream.compaction.outputs import WrittenObject
from millrace.s3stream.compaction.plan import (
    Bounds,
    SetPlan,
    SourceIndex,
    SourcesOverlap,
    find_trimmed,
    find_uncovered,
    streams_of,
)
from millrace.s3stream.compaction.sources import ReadMemory, Source, SourceUnreadable
from millrace.s3stream.compaction.work import Uncovered, Work
from millrace.s3stream.ids import (
    NO_OBJECT,
    CompactedStreamObject,
    CompactionCommit,
    ObjectKind,
    StreamId,
    StreamObjectInfo,
    StreamSetInfo,
)

log = logging.getLogger(__name__)
Objects = Sequence[StreamSetInfo] | Sequence[StreamObjectInfo]
Planner = Callable[[Sequence[SourceIndex], Bounds], Yielding[SetPlan | None]]


async def merge(
    work: Work, objects: Objects, planner: Planner, committing: Committing, *, is_index_alone: bool = False
) -> bool:
    """Whether it changed anything: objects compacted, or quarantined because they could not be read.
    `is_index_alone`: small objects do not come whole with their indexes, for it may end there.

    What cannot be read is never taken for nothing: the plan is thrown away, the object is quarantined, and
    the next plan is without it.
    """
    is_changed = True
    async with (
        noting(work, objects),
        opened(work, objects, is_index_alone=is_index_alone) as (sources, indexes),
    ):
        if len(sources) == len(objects):
            is_changed = await _merge_opened(work, sources, indexes, planner, committing)
    return is_changed


@asynccontextmanager
async def noting(work: Work, objects: Objects) -> AsyncIterator[None]:
    """Goes on behind the block when that met an object that cannot be compacted now: it is quarantined.
    Raises when the store is away."""
    try:
        yield
    except (SourceUnreadable, SourcesOverlap) as error:
        work.note(error)
        if isinstance(error, SourceUnreadable) and error.is_away:
            raise error.cause from None
    except Uncovered as error:
        log.error("compaction would lose data and was given up: %s", error)
        work.quarantine([one.object_id for one in objects], "uncovered", error)


async def _merge_opened(
    work: Work,
    sources: Sequence[Source],
    indexes: Sequence[SourceIndex],
    planner: Planner,
    committing: Committing,
) -> bool:
    bounds = await bounds_of(work, indexes)
    plan = await run_yielding(planner(indexes, bounds))
    if plan is None:
        return False
    first = next(place for place, source in enumerate(sources) if source.object_id == plan.source_ids[0])
    taken = slice(first, first + len(plan.source_ids))
    await carry_out(work, plan, sources[taken], indexes[taken], bounds, committing)
    return True


async def bounds_of(work: Work, indexes: Sequence[SourceIndex]) -> Bounds:
    """The bounds of streams are asked for after the objects were named and read, from an image that is no
    older: a stream that is missing from it is deleted, and was not merely unknown yet."""
    streams: dict[StreamId, None] = {}
    for index in indexes:
        streams |= dict.fromkeys(streams_of([index]))
        await asyncio.sleep(0)
    return work.catalog.stream_bounds(list(streams))


@asynccontextmanager
async def opened(
    work: Work, objects: Objects, *, is_index_alone: bool
) -> AsyncIterator[tuple[list[Source], list[SourceIndex]]]:
    """The objects that could be read, with their indexes; the others are quarantined. When the first is not
    answered, the store is away."""
    settings = work.settings
    memory = ReadMemory(settings.reading_bytes)
    whole_bytes_max = 0 if is_index_alone else settings.whole_source_bytes_max(len(objects))
    sources = [work.source(one.object_id, one.size_bytes, one.writer) for one in objects]
    tasks = [
        asyncio.create_task(source.open(memory, whole_bytes_max), name="compaction-index")
        for source in sources
    ]
    try:
        found: list[tuple[Source, SourceIndex]] = []
        for source, task in zip(sources, tasks, strict=True):
            try:
                found.append((source, await task))
            except SourceUnreadable as error:
                work.note(error)
                if error.is_away and not found:
                    raise error.cause from None
        work.quarantined.readmit(one.object_id for one, _ in found if not work.damage.has(one.object_id))
        yield [source for source, _ in found], [index for _, index in found]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for source in sources:
            await source.close()


async def carry_out(
    work: Work,
    plan: SetPlan,
    sources: Sequence[Source],
    indexes: Sequence[SourceIndex],
    bounds: Bounds,
    committing: Committing,
) -> None:
    """Durable on return, and handed over to be committed. Any error leaves metadata as it was."""
    trimmed_ids = await run_yielding(find_trimmed(indexes, bounds))
    if not plan.portions:
        await committing.commit(
            None, CompactionCommit(NO_OBJECT, 0, (), (), plan.source_ids, trimmed_ids=trimmed_ids)
        )
        return
    ids = await committing.ids(plan.objects_count)
    copying = Copying(work, plan, sources, ids)
    await copying.run(indexes, bounds)
    await check_covered(indexes, bounds, copying)
    work.quarantined.readmit(plan.source_ids)
    for object_id in plan.source_ids:
        work.damage.forget(object_id)
    await committing.commit(ids, replace(commit_of(plan, copying), trimmed_ids=trimmed_ids))
    for written in copying.stream_objects:
        work.known_rows.put(written.object_id, written.rows)


async def check_covered(indexes: Sequence[SourceIndex], bounds: Bounds, copying: Copying) -> None:
    """By what the outputs say they hold, row by row of the sources. Raises Uncovered for a range in none."""
    written = [*copying.stream_objects, *([copying.set_object] if copying.set_object else [])]
    ranges = [span for one in written for span in one.ranges]
    missing = await run_yielding(find_uncovered(indexes, bounds, ranges))
    if missing is not None:
        raise Uncovered(f"stream {missing.stream_id} [{missing.start}, {missing.end}) is in no new object")


def commit_of(plan: SetPlan, copying: Copying) -> CompactionCommit:
    made = tuple(stream_object(one) for one in copying.stream_objects)
    new_set = copying.set_object
    if new_set is None:
        return CompactionCommit(NO_OBJECT, 0, (), made, plan.source_ids)
    return CompactionCommit(new_set.object_id, new_set.size_bytes, new_set.ranges, made, plan.source_ids)


def stream_object(written: WrittenObject, kind: ObjectKind = ObjectKind.STREAM) -> CompactedStreamObject:
    (span,) = written.ranges
    return CompactedStreamObject(written.object_id, kind, written.size_bytes, span)
