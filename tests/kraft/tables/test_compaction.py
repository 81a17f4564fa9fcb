"""Commits of compaction: what takes the place of what, what is refused, what a repeat does."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.kraft.image.delta import apply_records
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.kraft.log.snapshot import image_records
from millrace.kraft.tables.objects import ObjectState
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.commit_compaction import (
    CommitCompactionRequest,
    CompactedObject,
    CompactedRange,
)
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.remove_objects import RemoveObjectsRequest
from millrace.protocol.messages.trim_streams import StreamTrim, TrimStreamsRequest
from millrace.protocol.stream_records import CommittedObjectRecord, StreamHoldersRecord, StreamSetGroupRecord
from millrace.s3stream.ids import NO_OBJECT, ObjectId, ObjectKind, StreamId
from tests.kraft.check import check_image, holding
from tests.kraft.tables.build import prepare
from tests.kraft.tables.test_objects import made, state, upload
from tests.kraft.test_replay import CLUSTER, Machine, snapshot_of

COMMITTED, PENDING_DELETION = ObjectState.COMMITTED, ObjectState.PENDING_DELETION
STREAM, COMPOSITE = ObjectKind.STREAM, ObjectKind.COMPOSITE
REFUSED = ErrorCode.INVALID_RECORD_STATE


def compact(
    machine: Machine,
    object_id: int,
    ranges: list[tuple[int, int, int]],
    compacted: list[int],
    own: tuple[tuple[int, ObjectKind, int, int, int], ...] = (),
    **lists: list[int],
) -> CommitCompactionRequest:
    """`own`: (object id, kind, stream, start, end) of objects of one stream."""
    return CommitCompactionRequest(
        1,
        machine.epoch,
        object_id,
        900,
        [CompactedRange(*one) for one in ranges],
        [CompactedObject(one[0], one[1], 400, *one[2:]) for one in own],
        compacted,
        **lists,
    )


def with_sets(count: int = 4) -> Machine:
    """Stream-set objects 0 to count-1, each with ten offsets of stream 0 and five of stream 1."""
    machine = made()
    for number in range(count):
        machine.now_ms += 100
        request = upload(
            machine,
            prepare(machine, ttl_ms=100_000),
            (0, 10 * number, 10 * number + 10),
            (1, 5 * number, 5 * number + 5),
        )
        assert machine.do(request).error_code == 0
    return machine


def with_stream_objects(count: int = 3) -> Machine:
    """Stream 0 in objects 0 to count-1, ten offsets each."""
    machine = made()
    first = prepare(machine, count, ttl_ms=100_000)
    for number in range(count):
        own = ((first + number, 0, 10 * number, 10 * number + 10),)
        assert machine.do(upload(machine, -1, own=own)).error_code == 0
    return machine


def check(machine: Machine) -> None:
    """The image is sound, and what the log and a snapshot give is equal to it."""
    check_image(machine.image)
    assert machine.replayed() == machine.image
    assert snapshot_of(machine.image) == machine.image


def holders(machine: Machine, stream_id: int) -> list[tuple[int, int, int]]:
    """(object, start, end) of what is exact about a stream."""
    stream = machine.image.streams.by_id[StreamId(stream_id)]
    return [(one.object_id, one.start, one.end) for one in machine.image.objects.of_stream(stream)]


def ends(machine: Machine) -> list[int]:
    return [stream.end for stream in machine.image.streams.by_id.values()]


def ask(machine: Machine, request: Any) -> ErrorCode:
    return ErrorCode(machine.do(request).error_code)


def test_sets_become_one_set_and_a_streams_own_object() -> None:
    """The sources are marked for deletion, the new set has the least order and age of them, no end moves."""
    machine = with_sets()
    before, first = ends(machine), prepare(machine, 2)
    oldest = machine.image.objects.by_id[ObjectId(0)].time_ms
    request = compact(machine, first, [(1, 0, 20)], [0, 1, 2, 3], own=((first + 1, STREAM, 0, 0, 40),))
    assert ask(machine, request) is ErrorCode.NONE
    assert [state(machine, i) for i in range(6)] == [PENDING_DELETION] * 4 + [COMMITTED] * 2
    assert holders(machine, 0) == [(first + 1, 0, 40)]
    (info,) = machine.image.objects.stream_sets(1)
    assert (info.object_id, info.order_id, info.data_time_ms, info.size_bytes) == (first, 0, oldest, 900)
    assert ends(machine) == before
    check(machine)


def test_a_compaction_sent_again_changes_nothing() -> None:
    """It is known by the objects that it made, also when they were emptied since."""
    machine = with_sets()
    first = prepare(machine, 2)
    request = compact(machine, first, [(1, 0, 20)], [0, 1, 2, 3], own=((first + 1, STREAM, 0, 0, 40),))
    assert ask(machine, request) is ErrorCode.NONE
    before = machine.image
    assert ask(machine, request) is ErrorCode.NONE
    assert machine.image is before
    machine.do(TrimStreamsRequest(1, machine.epoch, [StreamTrim(0, 0, 40)]))
    assert state(machine, first + 1) is PENDING_DELETION
    before = machine.image
    assert ask(machine, request) is ErrorCode.NONE
    assert machine.image is before


def test_a_forced_split_sent_again_succeeds() -> None:
    """A commit without a stream-set object is known by what it made."""
    machine = with_sets(1)
    first = prepare(machine, 2)
    request = compact(
        machine, NO_OBJECT, [], [0], own=((first, STREAM, 0, 0, 10), (first + 1, STREAM, 1, 0, 5))
    )
    assert ask(machine, request) is ErrorCode.NONE
    before = machine.image
    assert ask(machine, request) is ErrorCode.NONE
    assert machine.image is before
    check(machine)


def test_a_commit_that_only_ends_its_sources_succeeds_twice_and_for_ever() -> None:
    """It makes nothing, so it is known by its sources: marked for deletion, and later forgotten."""
    machine = made()
    assert ask(machine, upload(machine, prepare(machine), (0, 0, 10))) is ErrorCode.NONE
    machine.do(TrimStreamsRequest(1, machine.epoch, [StreamTrim(0, 0, 10)]))
    request = compact(machine, NO_OBJECT, [], [0])
    assert ask(machine, request) is ErrorCode.NONE
    machine.do(RemoveObjectsRequest(1, machine.epoch, [0]))
    before = machine.image
    assert ask(machine, request) is ErrorCode.NONE
    assert machine.image is before


def test_nothing_that_is_wanted_may_be_left_behind() -> None:
    """Outputs that miss a stream, an end, a middle or a beginning are refused, and nothing changes."""
    machine = with_sets()
    first = prepare(machine, 2)
    before = machine.image
    for ranges in (
        [],
        [(0, 0, 40)],
        [(0, 0, 39), (1, 0, 20)],
        [(0, 1, 40), (1, 0, 20)],
        [(0, 0, 15), (0, 16, 40), (1, 0, 20)],
    ):
        assert ask(machine, compact(machine, first, ranges, [0, 1, 2, 3])) is REFUSED, ranges
        assert machine.image is before
    assert ask(machine, compact(machine, NO_OBJECT, [], [0, 1, 2, 3])) is REFUSED
    assert ask(machine, compact(machine, first, [(0, 0, 40), (1, 0, 20)], [0, 1, 2, 3])) is ErrorCode.NONE
    check(machine)


def test_what_was_trimmed_meanwhile_is_passed_over() -> None:
    """A plan made before a trim and a deletion still fits: it carries more than is wanted."""
    machine = with_sets()
    first = prepare(machine, 2)
    request = compact(machine, first, [(0, 0, 40)], [0, 1, 2, 3], own=((first + 1, STREAM, 1, 0, 20),))
    machine.do(TrimStreamsRequest(1, machine.epoch, [StreamTrim(0, 0, 25)]))
    machine.do(DeleteTopicsRequest([DeleteTopicState("u")]))
    assert ask(machine, request) is ErrorCode.NONE
    assert [state(machine, i) for i in range(6)] == [PENDING_DELETION] * 4 + [COMMITTED, PENDING_DELETION]
    check(machine)


def test_a_plan_made_after_a_trim_need_not_carry_what_was_trimmed() -> None:
    """What lies below the start is wanted by nobody."""
    machine = with_sets()
    machine.do(TrimStreamsRequest(1, machine.epoch, [StreamTrim(0, 0, 25)]))
    first = prepare(machine)
    live = [i for i in range(4) if state(machine, i) is COMMITTED]
    assert ask(machine, compact(machine, first, [(0, 26, 40), (1, 0, 20)], live)) is REFUSED
    assert ask(machine, compact(machine, first, [(0, 25, 40), (1, 0, 20)], live)) is ErrorCode.NONE
    check(machine)


def test_a_plan_on_stale_metadata_is_refused() -> None:
    """A source that another compaction has replaced meanwhile is no source, and what took its place stays."""
    machine = with_sets()
    first = prepare(machine, 2)
    assert ask(machine, compact(machine, first, [(0, 0, 40), (1, 0, 20)], [0, 1, 2, 3])) is ErrorCode.NONE
    before = machine.image
    stale = compact(machine, first + 1, [(0, 0, 40), (1, 0, 20)], [0, 1, 2, 3])
    assert ask(machine, stale) is REFUSED
    assert machine.image is before


def test_an_object_that_expired_before_its_commit_is_refused() -> None:
    """The store may have deleted it: the sources stay."""
    machine = with_sets()
    first = prepare(machine, ttl_ms=500)
    machine.now_ms += 600
    machine.expire()
    before = machine.image
    assert ask(machine, compact(machine, first, [(0, 0, 40), (1, 0, 20)], [0, 1, 2, 3])) is REFUSED
    assert machine.image is before
    assert [state(machine, i) for i in range(5)] == [COMMITTED] * 4 + [PENDING_DELETION]


def test_sources_named_twice_are_one() -> None:
    """Duplicates in one list do no harm; an id in two lists, or one that is source and result, is no plan."""
    machine = with_sets()
    first = prepare(machine)
    whole = [(0, 0, 40), (1, 0, 20)]
    for wrong in (
        compact(machine, 3, whole, [0, 1, 2, 3]),
        compact(machine, first, whole, [0, 1, 2, 3], superseded_ids=[3]),
        compact(machine, first, whole, [0, 1, 2, 3], own=((first, STREAM, 1, 0, 20),)),
        compact(machine, first, whole, []),
        compact(machine, NO_OBJECT, whole, [0, 1, 2, 3]),
        compact(machine, first, [(0, 40, 40)], [0, 1, 2, 3]),
        compact(machine, first, whole, [-1]),
    ):
        assert ask(machine, wrong) is ErrorCode.INVALID_REQUEST
    assert ask(machine, compact(machine, first, whole, [0, 1, 2, 3, 3, 0])) is ErrorCode.NONE
    check(machine)


def test_what_was_committed_after_the_plan_stays() -> None:
    """Uploads go on while compaction works: their objects are no sources and keep what they hold."""
    machine = with_sets()
    first = prepare(machine, 2)
    assert ask(machine, upload(machine, first + 1, (0, 40, 50))) is ErrorCode.NONE
    assert ask(machine, compact(machine, first, [(0, 0, 40), (1, 0, 20)], [0, 1, 2, 3])) is ErrorCode.NONE
    assert state(machine, first + 1) is COMMITTED
    assert ends(machine) == [50, 20]
    check(machine)


def test_what_may_be_linked_must_still_be_there() -> None:
    """A plan that would link what was trimmed meanwhile is made anew: its file is about to be deleted."""
    machine = with_stream_objects()
    composite = prepare(machine)
    machine.do(TrimStreamsRequest(1, machine.epoch, [StreamTrim(0, 0, 12)]))
    before = machine.image
    assert ask(machine, linked(machine, composite)) is REFUSED
    assert machine.image is before


def test_a_group_goes_object_by_object() -> None:
    """Objects of one group that are compacted apart: what is left names those that are left, and the last one
    is judged exactly."""
    machine = with_sets()
    first = prepare(machine, 8)
    for number, source in enumerate((1, 0, 3)):
        low, high = 10 * source, 10 * source + 10
        request = compact(machine, first + number, [(0, low, high), (1, low // 2, high // 2)], [source])
        assert ask(machine, request) is ErrorCode.NONE
        check(machine)
    assert holding(machine.image, 0, 25) == [2]
    assert ask(machine, compact(machine, first + 4, [(0, 20, 30)], [2])) is REFUSED
    assert ask(machine, compact(machine, first + 4, [(0, 20, 30), (1, 10, 15)], [2])) is ErrorCode.NONE
    for offset, made_id in ((0, first + 1), (10, first), (20, first + 4), (30, first + 2)):
        assert made_id in holding(machine.image, 0, offset)
    check(machine)


def test_a_stream_that_was_forgotten_is_missed_in_a_group_that_goes_on() -> None:
    """A source's streams are in the new objects, or said to be trimmed there; what is neither was
    forgotten."""
    machine = with_sets()
    machine.do(
        TrimStreamsRequest(1, machine.epoch, [StreamTrim(1, 0, 8)])
    )  # of object 0 nothing of stream 1 is wanted
    first = prepare(machine, 2)
    before = machine.image
    assert ask(machine, compact(machine, first, [(0, 0, 10)], [0])) is REFUSED
    assert ask(machine, compact(machine, first, [(1, 5, 10)], [1], trimmed_ids=[1])) is REFUSED
    assert ask(machine, compact(machine, NO_OBJECT, [], [0])) is REFUSED
    assert machine.image is before
    assert ask(machine, compact(machine, first, [(0, 0, 10)], [0], trimmed_ids=[1])) is ErrorCode.NONE
    check(machine)
    assert (
        ask(machine, compact(machine, first + 1, [(0, 10, 20), (1, 8, 10)], [1], trimmed_ids=[77]))
        is ErrorCode.NONE
    )
    check(machine)


def test_what_a_source_alone_held_is_missed() -> None:
    """A piece of a stream that nothing else on the group has any of."""
    machine = made()
    for number, ranges in enumerate((((0, 0, 10),), ((0, 10, 20), (1, 0, 10)), ((0, 20, 30),))):
        assert ask(machine, upload(machine, prepare(machine, ttl_ms=100_000), *ranges)) is ErrorCode.NONE, (
            number
        )
    first = prepare(machine)
    before = machine.image
    assert ask(machine, compact(machine, first, [(0, 10, 20), (1, 5, 10)], [1])) is REFUSED
    assert machine.image is before
    assert ask(machine, compact(machine, first, [(0, 10, 20), (1, 0, 10)], [1])) is ErrorCode.NONE
    check(machine)


def test_sets_of_compaction_share_groups_of_their_own() -> None:
    """Four outputs lie on one, and a stream that goes on from one to the next has one range there; uploads
    fill others."""
    machine = with_sets(8)
    first = prepare(machine, 2)
    for number in range(2):
        sources = list(range(4 * number, 4 * number + 4))
        whole = [(0, 40 * number, 40 * number + 40), (1, 20 * number, 20 * number + 20)]
        assert ask(machine, compact(machine, first + number, whole, sources)) is ErrorCode.NONE
    assert holding(machine.image, 0, 5) == [first, first + 1]
    assert [len(ranges) for ranges in machine.image.objects.ranges.values()] == [1, 1]
    assert ask(machine, upload(machine, prepare(machine), (0, 80, 90))) is ErrorCode.NONE
    assert len(machine.image.objects.groups) == 2
    assert len(holding(machine.image, 0, 85)) == 1
    check(machine)


def test_only_the_one_who_wrote_an_object_compacts_it() -> None:
    """A set is its node's, a stream's own object the stream's owner's; and a node that was replaced is
    fenced."""
    machine = with_sets()
    own = prepare(machine)
    assert ask(machine, upload(machine, -1, own=((own, 0, 40, 50),))) is ErrorCode.NONE
    other = machine.do(BrokerRegistrationRequest(2, CLUSTER, b"\x02" * 16)).broker_epoch
    first = prepare(machine)
    for request in (
        compact(machine, first, [(0, 0, 40), (1, 0, 20)], [0, 1, 2, 3]),
        compact(machine, NO_OBJECT, [], [own], own=((first, STREAM, 0, 40, 50),)),
    ):
        request.node_id, request.broker_epoch = 2, other
        assert ask(machine, request) is REFUSED
        request.node_id, request.broker_epoch = 1, machine.epoch - 1
        assert ask(machine, request) is ErrorCode.STALE_BROKER_EPOCH


def linked(machine: Machine, object_id: int, count: int = 3) -> CommitCompactionRequest:
    """Stream 0's first objects, linked by a composite."""
    own = ((object_id, COMPOSITE, 0, 0, 10 * count),)
    return compact(machine, NO_OBJECT, [], [], own=own, linked_ids=list(range(count)))


def test_a_composite_takes_the_place_of_what_it_links() -> None:
    """The linked leave metadata at once and their files stay: nothing of them is marked for deletion."""
    machine = with_stream_objects()
    composite = prepare(machine)
    assert ask(machine, linked(machine, composite)) is ErrorCode.NONE
    assert [state(machine, i) for i in range(4)] == [None, None, None, COMMITTED]
    assert [
        one.kind for one in machine.image.objects.of_stream(machine.image.streams.by_id[StreamId(0)])
    ] == [COMPOSITE]
    assert ask(machine, linked(machine, composite)) is ErrorCode.NONE
    check(machine)


def test_nothing_is_linked_that_no_composite_holds() -> None:
    """A file that nothing links and metadata has forgotten would stay for ever."""
    machine = with_stream_objects()
    first = prepare(machine, 2)
    short = compact(machine, NO_OBJECT, [], [], own=((first, COMPOSITE, 0, 0, 25),), linked_ids=[0, 1, 2])
    plain = compact(machine, NO_OBJECT, [], [], own=((first, STREAM, 0, 0, 30),), linked_ids=[0, 1, 2])
    unknown = compact(
        machine, NO_OBJECT, [], [0, 1, 2], own=((first, STREAM, 0, 0, 30),), dropped_link_ids=[77]
    )
    stray = compact(
        machine, NO_OBJECT, [], [0, 1, 2], own=((first, STREAM, 0, 0, 30),), dropped_link_ids=[first + 1]
    )
    odd = compact(machine, NO_OBJECT, [], [], own=((first, STREAM, 0, 0, 30),), superseded_ids=[0, 1, 2])
    before = machine.image
    for request in (short, plain, unknown, stray, odd):
        assert ask(machine, request) is REFUSED
        assert machine.image is before


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_composite_of_a_stream_that_goes_is_marked_with_its_links(is_deleted: bool) -> None:
    """Deleted or wholly trimmed: who deletes the file must delete what it links; a restart from a snapshot
    knows it too."""
    machine = with_stream_objects()
    composite = prepare(machine)
    assert ask(machine, linked(machine, composite)) is ErrorCode.NONE
    if is_deleted:
        machine.do(DeleteTopicsRequest([DeleteTopicState("t")]))
    else:
        machine.do(TrimStreamsRequest(1, machine.epoch, [StreamTrim(0, 0, 30)]))
    marked = machine.image.objects.by_id[ObjectId(composite)]
    assert (marked.state, marked.with_links) == (PENDING_DELETION, True)
    check(machine)


def test_a_composite_replaced_by_another_leaves_its_links_to_it() -> None:
    """Its own file goes alone; a link that the new one dropped is marked for deletion by name; a rewritten
    one goes with its links."""
    machine = with_stream_objects()
    first = prepare(machine, 3)
    assert ask(machine, linked(machine, first)) is ErrorCode.NONE
    machine.do(TrimStreamsRequest(1, machine.epoch, [StreamTrim(0, 0, 12)]))
    own = ((first + 1, COMPOSITE, 0, 10, 30),)
    request = compact(machine, NO_OBJECT, [], [], own=own, superseded_ids=[first], dropped_link_ids=[0])
    assert ask(machine, request) is ErrorCode.NONE
    old, dropped = (machine.image.objects.by_id[ObjectId(i)] for i in (first, 0))
    assert (old.state, old.with_links) == (dropped.state, dropped.with_links) == (PENDING_DELETION, False)
    assert state(machine, 1) is None
    check(machine)
    rewritten = compact(machine, NO_OBJECT, [], [first + 1], own=((first + 2, STREAM, 0, 12, 30),))
    assert ask(machine, rewritten) is ErrorCode.NONE
    assert machine.image.objects.by_id[ObjectId(first + 1)].with_links
    check(machine)


def test_an_object_named_twice_in_a_snapshot_counts_once() -> None:
    """Duplicates, and records of it in front of what they name again, load to the same image."""
    machine = with_sets(6)
    first = prepare(machine, 2)
    whole = compact(machine, first, [(0, 0, 40)], [0, 1, 2, 3], own=((first + 1, STREAM, 1, 0, 20),))
    assert ask(machine, whole) is ErrorCode.NONE
    records = list(image_records(machine.image))
    twice = [again for record in records for again in (record, record)]
    streams = [record for record in records if isinstance(record, StreamHoldersRecord)]
    for given in (twice, [*records, *streams]):
        image = apply_records(EMPTY_IMAGE, without_repeated_topics(given), machine.image.offset, 1)[1]
        assert image == machine.image


def without_repeated_topics(records: list[Any]) -> list[Any]:
    """Only our own records twice: Kafka's tables are not what this is about."""
    ours = (CommittedObjectRecord, StreamSetGroupRecord, StreamHoldersRecord)
    return [one for place, one in enumerate(records) if isinstance(one, ours) or records.index(one) == place]


def test_what_lies_on_both_sides_of_a_kept_object_is_taken_over() -> None:
    """Ids do not follow offsets where an upload was late: of a group's range the first and the third part go
    to new objects, and each offset is found in the object that has it."""
    machine = with_sets()
    ids = prepare(machine, 4, ttl_ms=100_000)
    own = tuple(
        (ids + place, STREAM, stream, low, high)
        for place, (stream, low, high) in enumerate(((0, 0, 10), (0, 20, 30), (1, 0, 5), (1, 10, 15)))
    )
    assert machine.do(compact(machine, NO_OBJECT, [], [0, 2], own)).error_code == 0
    check(machine)
    objects, streams = machine.image.objects, machine.image.streams
    for stream_id, size in ((0, 10), (1, 5)):
        stream = streams.by_id[StreamId(stream_id)]
        for part, wanted in enumerate((ids + 2 * stream_id, 1, ids + 2 * stream_id + 1, 3)):
            for offset in range(part * size, part * size + size):
                hints = [
                    hint for hint in objects.candidates(stream, offset, 1) if hint.start <= offset < hint.end
                ]
                assert wanted in [hint.object_id for hint in hints], (stream_id, offset, hints)
