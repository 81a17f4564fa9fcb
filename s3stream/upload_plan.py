"""Which streams of an upload get an object of their own, and which share one. Pure.

A stream with much data gets a Stream object: its readers read nothing else, and it need not be split later.
The others share one StreamSet object, sorted by stream, so that an upload costs one request however many
streams it holds. Ids: the set takes the first of those prepared, stream objects the following ones, in the
order of their streams; so ids grow with the blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest

from millrace.protocol.dataclass import dataclass
from millrace.s3stream.ids import (
    NO_OBJECT,
    CommittedStreamObject,
    ObjectId,
    StreamId,
    StreamRange,
    UploadCommit,
)
from millrace.s3stream.log_cache import Run

OWN_OBJECTS_MAX = 1000  # in one upload: each is a request, and ids for many more are not given at once


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """`runs` in ascending order of stream; a Stream object has one."""

    runs: tuple[Run, ...]

    @property
    def payload_bytes(self) -> int:
        return sum(run.payload_bytes for run in self.runs)

    @property
    def ranges(self) -> tuple[StreamRange, ...]:
        return tuple(StreamRange(StreamId(run.stream_id), run.start, run.end) for run in self.runs)


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """`stream_set` is None when every stream got its own object."""

    stream_set: PlannedObject | None
    stream_objects: tuple[PlannedObject, ...]

    @property
    def objects(self) -> tuple[PlannedObject, ...]:
        """In the order of their ids."""
        return self.stream_objects if self.stream_set is None else (self.stream_set, *self.stream_objects)

    def commit(self, first_id: ObjectId, sizes: Sequence[int]) -> UploadCommit:
        """What to commit once `objects` were put as `first_id` and following, with these sizes."""
        assert len(sizes) == len(self.objects)
        has_set = self.stream_set is not None
        stream_objects = tuple(
            CommittedStreamObject(ObjectId(first_id + place), sizes[place], planned.ranges[0])
            for place, planned in enumerate(self.objects)
            if planned is not self.stream_set
        )
        return UploadCommit(
            object_id=first_id if has_set else NO_OBJECT,
            size_bytes=sizes[0] if has_set else 0,
            ranges=self.stream_set.ranges if self.stream_set is not None else (),
            stream_objects=stream_objects,
        )


def plan_upload(runs: Iterable[Run], split_bytes: int) -> UploadPlan:
    """Streams with `split_bytes` of payload or more are split off, of very many the largest."""
    ordered = sorted(runs, key=lambda run: run.stream_id)
    large = [run for run in ordered if run.payload_bytes >= split_bytes]
    split = dict.fromkeys(
        id(run) for run in nlargest(OWN_OBJECTS_MAX, large, key=lambda run: run.payload_bytes)
    )
    shared = tuple(run for run in ordered if id(run) not in split)
    own = tuple(PlannedObject((run,)) for run in large if id(run) in split)
    return UploadPlan(PlannedObject(shared) if shared else None, own)
