"""Which streams of an upload get their own object: a table."""

from __future__ import annotations

import pytest

from millrace.s3stream.ids import NO_OBJECT, ObjectId
from millrace.s3stream.log_cache import LogCache, Run
from millrace.s3stream.objects.format import Entry
from millrace.s3stream.upload_plan import OWN_OBJECTS_MAX, plan_upload


def runs(*sizes: tuple[int, int]) -> list[Run]:
    cache = LogCache(1 << 30)
    for stream_id, size in sizes:
        cache.put(stream_id, Entry(0, 5, memoryview(bytes(size))), 10)
    return list(cache.active.runs.values())


@pytest.mark.parametrize(
    ("sizes", "stream_set", "own"),
    [
        ([(1, 10)], [1], []),
        ([(3, 10), (1, 99), (2, 50)], [1, 2, 3], []),
        ([(3, 100), (1, 99), (2, 50)], [1, 2], [3]),
        ([(9, 500), (1, 100)], None, [1, 9]),
        ([(4, 101)], None, [4]),
        ([], None, []),
    ],
)
def test_split(sizes: list[tuple[int, int]], stream_set: list[int] | None, own: list[int]) -> None:
    """Streams of 100 bytes or more are split off; the others share one object, sorted by stream."""
    plan = plan_upload(runs(*sizes), 100)
    assert (
        None if plan.stream_set is None else [run.stream_id for run in plan.stream_set.runs]
    ) == stream_set
    assert [planned.runs[0].stream_id for planned in plan.stream_objects] == own
    assert len(plan.objects) == len(own) + (stream_set is not None)


def test_of_very_many_the_largest_are_split_off() -> None:
    """The others stay in the set: ids for all of them at once would be refused, and each costs a request."""
    sizes = [(stream_id, 100 + stream_id % 7) for stream_id in range(1, OWN_OBJECTS_MAX + 200)]
    plan = plan_upload(runs(*sizes), 100)
    assert len(plan.stream_objects) == OWN_OBJECTS_MAX
    assert plan.stream_set is not None
    assert [run.stream_id for run in plan.stream_set.runs] == sorted(
        run.stream_id for run in plan.stream_set.runs
    )
    assert max(run.payload_bytes for run in plan.stream_set.runs) <= min(
        one.payload_bytes for one in plan.stream_objects
    )
    assert len(plan.stream_set.runs) == len(sizes) - OWN_OBJECTS_MAX


def test_commit_names_ids_sizes_and_ranges() -> None:
    """The set takes the first id, stream objects the following ones in the order of their streams."""
    commit = plan_upload(runs((5, 200), (2, 10), (3, 300), (1, 10)), 100).commit(ObjectId(70), [11, 22, 33])
    assert (commit.object_id, commit.size_bytes) == (70, 11)
    assert [(span.stream_id, span.start, span.end) for span in commit.ranges] == [(1, 0, 5), (2, 0, 5)]
    assert [(made.object_id, made.size_bytes, made.range.stream_id) for made in commit.stream_objects] == [
        (71, 22, 3),
        (72, 33, 5),
    ]


def test_commit_without_a_set() -> None:
    """When every stream got its own object there is no set, and the first id is a stream's."""
    commit = plan_upload(runs((5, 200)), 100).commit(ObjectId(7), [11])
    assert (commit.object_id, commit.ranges) == (NO_OBJECT, ())
    assert [made.object_id for made in commit.stream_objects] == [7]
