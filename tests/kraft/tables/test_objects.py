"""The life of objects: prepared, committed, pending deletion, gone; and what a commit may say."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.kraft.tables.objects import ObjectState
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.commit_upload import CommitUploadRequest, UploadedRange, UploadedStreamObject
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest
from millrace.protocol.messages.remove_objects import RemoveObjectsRequest
from millrace.protocol.messages.trim_streams import StreamTrim, TrimStreamsRequest
from millrace.protocol.metadata_records import FeatureLevelRecord
from millrace.protocol.stream_records import NodeWalRecord
from millrace.s3stream.ids import ObjectHint, ObjectId, ObjectKind, StreamId
from tests.kraft.check import check_image, holding
from tests.kraft.tables.build import create, open_streams, prepare, topic
from tests.kraft.test_replay import CLUSTER, Machine


def made() -> Machine:
    """Streams 0 and 1 open, nothing committed."""
    machine = Machine()
    create(machine, topic("t", 1), topic("u", 1))
    assert open_streams(machine, "t") + open_streams(machine, "u") == [0, 1]
    return machine


def upload(
    machine: Machine,
    object_id: int,
    *ranges: tuple[int, int, int],
    own: tuple[tuple[int, int, int, int], ...] = (),
) -> CommitUploadRequest:
    return CommitUploadRequest(
        1,
        machine.epoch,
        object_id,
        1_000,
        [UploadedRange(*one) for one in ranges],
        [UploadedStreamObject(made[0], 300, *made[1:]) for made in own],
    )


def state(machine: Machine, object_id: int) -> ObjectState | None:
    found = machine.image.objects.get(object_id)
    return None if found is None else found.state


def test_prepared_ids_are_consecutive_and_given_once() -> None:
    """Blocks follow one another, also after earlier ones expired."""
    machine = made()
    assert prepare(machine, 3) == 0
    assert prepare(machine) == 3
    machine.now_ms += 2_000
    machine.expire()
    assert prepare(machine, 2) == 4
    check_image(machine.image)


@pytest.mark.parametrize(("count", "ttl_ms"), [(0, 1), (-1, 1), (10_001, 1), (1, 0), (1, -5), (1, 1 << 60)])
def test_bounds_of_a_preparation(count: int, ttl_ms: int) -> None:
    """Nothing without bound."""
    machine = made()
    response = machine.do(PrepareObjectsRequest(1, machine.epoch, count, ttl_ms))
    assert response.error_code == ErrorCode.INVALID_REQUEST


def test_ids_are_prepared_for_one_writer() -> None:
    """Who prepares names its token, which must be the registered incarnation's; metadata keeps it from there
    to the commit and names it to readers and to compaction. Who names none, as at millrace.version 0, is
    taken; who names one there is not."""
    machine = made()
    machine.do(BrokerRegistrationRequest(1, CLUSTER, bytes(range(1, 17))))
    machine.epoch = machine.image.brokers.by_id[1].epoch
    assert open_streams(machine, "t") + open_streams(machine, "u") == [0, 1]
    token = int.from_bytes(bytes(range(1, 9)), "big")
    refused = machine.do(PrepareObjectsRequest(1, machine.epoch, 1, 1_000, token + 1))
    assert refused.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert (
        refused.error_message == "incarnation 0102030405060708 of node 1 is registered, not 0102030405060709"
    )
    first = machine.do(PrepareObjectsRequest(1, machine.epoch, 2, 1_000, token)).first_object_id
    request = upload(machine, first, (1, 0, 7), own=((first + 1, 0, 0, 20),))
    unnamed = machine.do(request)
    assert unnamed.error_code == ErrorCode.RESOURCE_NOT_FOUND
    assert (
        unnamed.error_message == f"object {first} was prepared for incarnation 0102030405060708, not {0:016x}"
    )
    request.incarnation = bytes(16)[:-1] + b"x"
    assert machine.do(request).error_code == ErrorCode.STALE_BROKER_EPOCH
    request.incarnation = bytes(range(1, 17))
    assert machine.do(request).error_code == 0
    objects, streams = machine.image.objects, machine.image.streams
    for stream in streams.by_id.values():
        assert [hint.writer for hint in objects.candidates(stream, 0, 9)] == [token]
    assert [info.writer for info in objects.stream_sets(1)] == [token]
    assert [info.writer for info in objects.of_stream(streams.by_id[StreamId(0)])] == [token]
    machine.commit([FeatureLevelRecord("millrace.version", 0)])
    assert (
        machine.do(PrepareObjectsRequest(1, machine.epoch, 1, 1_000, token)).error_code
        == ErrorCode.INVALID_REQUEST
    )
    assert machine.do(PrepareObjectsRequest(1, machine.epoch, 1, 1_000)).error_code == 0


def test_a_commit_moves_the_log_that_it_came_from() -> None:
    """In its own batch, and never back; a log that is not registered is passed over."""
    machine = made()
    wal_id = bytes(range(16))
    for place, (named, end, position) in enumerate(
        ((wal_id, 500, None), (wal_id, 500, 500), (wal_id, 400, 500))
    ):
        if place == 1:
            machine.commit(
                [NodeWalRecord(1, wal_id, "block", "0@file:///wal", machine.epoch, bytes(16), 100, 0)]
            )
        request = upload(machine, prepare(machine), (1, place, place + 1))
        request.wal_id, request.wal_end = named, end
        batches = len(machine.batches)
        assert machine.do(request).error_code == 0
        assert len(machine.batches) == batches + 1
        wal = machine.image.wals.active(1)
        assert (None if wal is None else wal.position) == position


def test_a_commit() -> None:
    """Ends move, readers find what was put, with kind and size; the other id is a stream's own object."""
    machine = made()
    first = prepare(machine, 2)
    request = upload(machine, first, (1, 0, 7), own=((first + 1, 0, 0, 20),))
    assert machine.do(request).error_code == 0
    objects, streams = machine.image.objects, machine.image.streams
    one, two = streams.by_id.values()
    assert objects.candidates(one, 5, 9) == [ObjectHint(ObjectId(1), ObjectKind.STREAM, 300, 0, 20)]
    assert objects.candidates(two, 0, 9) == [ObjectHint(ObjectId(0), ObjectKind.STREAM_SET, 1_000, 0, 7)]
    assert [stream.end for stream in streams.by_id.values()] == [20, 7]
    assert (objects.committed_count, objects.committed_bytes) == (2, 1_300)
    check_image(machine.image)


def test_a_commit_sent_again_changes_nothing() -> None:
    """Also when its objects were emptied in between, as long as they are remembered."""
    machine = made()
    first = prepare(machine, 2)
    request = upload(machine, first, (1, 0, 7), own=((first + 1, 0, 0, 20),))
    machine.do(request)
    before = machine.image
    assert machine.do(request).error_code == 0
    assert machine.image is before
    machine.do(TrimStreamsRequest(1, machine.epoch, [StreamTrim(0, 0, 20)]))
    assert state(machine, first + 1) is ObjectState.PENDING_DELETION
    before = machine.image
    assert machine.do(request).error_code == 0
    assert machine.image is before
    machine.do(RemoveObjectsRequest(1, machine.epoch, [first + 1]))
    assert machine.do(request).error_code == ErrorCode.RESOURCE_NOT_FOUND


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"ranges": [UploadedRange(0, 11, 12)]}, ErrorCode.OFFSET_OUT_OF_RANGE),  # a gap
        ({"ranges": [UploadedRange(0, 9, 12)]}, ErrorCode.OFFSET_OUT_OF_RANGE),  # half committed before
        ({"ranges": [UploadedRange(0, 5, 5)]}, ErrorCode.INVALID_REQUEST),
        ({"ranges": [UploadedRange(0, -5, 5)]}, ErrorCode.INVALID_REQUEST),
        ({"object_id": 99}, ErrorCode.RESOURCE_NOT_FOUND),
        ({"object_id": -1}, ErrorCode.INVALID_REQUEST),  # nothing to commit
        ({"object_id": -1, "ranges": []}, ErrorCode.INVALID_REQUEST),
        ({"stream_objects": [UploadedStreamObject(2, 1, 1, 0, 1)] * 2}, ErrorCode.INVALID_REQUEST),
        ({"stream_objects": [UploadedStreamObject(99, 1, 1, 0, 1)]}, ErrorCode.RESOURCE_NOT_FOUND),
        ({"stream_objects": [UploadedStreamObject(2, 1, 1, 3, 9)]}, ErrorCode.OFFSET_OUT_OF_RANGE),
        ({"broker_epoch": 0}, ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_what_a_commit_may_not_say(change: dict[str, Any], code: ErrorCode) -> None:
    """It is refused whole: the good parts of it neither count."""
    machine = made()
    assert machine.do(upload(machine, prepare(machine), (0, 0, 10))).error_code == 0
    assert prepare(machine, 3) == 1
    request = upload(machine, 1, (0, 10, 12))
    for name, value in change.items():
        setattr(request, name, value)
    before = machine.image
    assert ErrorCode(machine.do(request).error_code) is code
    assert machine.image is before


def test_what_is_committed_already_is_passed_over() -> None:
    """A range below the committed end adds nothing; an object that adds nothing at all is marked for deletion
    at once."""
    machine = made()
    machine.do(upload(machine, prepare(machine), (0, 0, 10)))
    first = prepare(machine, 2)
    assert (
        machine.do(upload(machine, first, (0, 0, 10), (1, 0, 4), own=((first + 1, 0, 2, 9),))).error_code == 0
    )
    assert [state(machine, i) for i in (first, first + 1)] == [
        ObjectState.COMMITTED,
        ObjectState.PENDING_DELETION,
    ]
    assert holding(machine.image, 0, 0) == [0]
    check_image(machine.image)


def test_streams_that_are_gone_are_passed_over() -> None:
    """An upload under way when its topic was deleted: what is left of it counts, the stream's own object is
    marked for deletion."""
    machine = made()
    first = prepare(machine, 2)
    machine.do(DeleteTopicsRequest([DeleteTopicState("t")]))
    assert (
        machine.do(upload(machine, first, (1, 0, 4), (0, 0, 9), own=((first + 1, 0, 9, 20),))).error_code == 0
    )
    assert [state(machine, i) for i in (first, first + 1)] == [
        ObjectState.COMMITTED,
        ObjectState.PENDING_DELETION,
    ]
    check_image(machine.image)


def test_several_ranges_of_one_stream() -> None:
    """In any order, as long as they are continuous in the end."""
    machine = made()
    object_id = prepare(machine)
    assert machine.do(upload(machine, object_id, (0, 5, 9), (0, 0, 5))).error_code == 0
    (hint,) = machine.image.objects.candidates(machine.image.streams.by_id[StreamId(0)], 0, 9)
    assert (hint.object_id, hint.start, hint.end) == (object_id, 0, 9)
    check_image(machine.image)


def test_only_the_owner_commits() -> None:
    """Neither another node's prepared object nor another node's stream can be used."""
    machine = made()
    epoch = machine.do(BrokerRegistrationRequest(2, CLUSTER, b"\x02" * 16)).broker_epoch
    mine = prepare(machine)
    theirs = machine.do(PrepareObjectsRequest(2, epoch, 1, 1_000)).first_object_id
    stolen = upload(machine, mine, (0, 0, 5))
    stolen.node_id, stolen.broker_epoch = 2, epoch
    assert machine.do(stolen).error_code == ErrorCode.RESOURCE_NOT_FOUND
    stolen.object_id = theirs
    assert machine.do(stolen).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_expiry() -> None:
    """At the deadline what was not committed is marked for deletion, and cannot be committed any more."""
    machine = made()
    first = prepare(machine, 2, ttl_ms=500)
    later = prepare(machine, 1, ttl_ms=900)
    machine.do(upload(machine, first, (0, 0, 5)))
    machine.now_ms += 499
    before = machine.image
    machine.expire()
    assert machine.image is before
    machine.now_ms += 1
    machine.expire()
    states = [state(machine, i) for i in (first, first + 1, later)]
    assert states == [ObjectState.COMMITTED, ObjectState.PENDING_DELETION, ObjectState.PREPARED]
    assert machine.do(upload(machine, first + 1, (0, 5, 6))).error_code == ErrorCode.RESOURCE_NOT_FOUND
    check_image(machine.image)


def test_removal() -> None:
    """Those pending deletion are forgotten once their files are gone, the oldest named first; others are not
    removed."""
    machine = made()
    first = prepare(machine, 2, ttl_ms=500)
    kept = prepare(machine, 1, ttl_ms=9_000)
    machine.now_ms += 600
    machine.expire()
    since = machine.now_ms
    objects = machine.image.objects
    assert objects.pending_deletions_before(since - 1, 10) == []
    assert objects.pending_deletions_before(since, 1) == [first]
    refused = machine.do(RemoveObjectsRequest(1, machine.epoch, [first, kept]))
    assert refused.error_code == ErrorCode.INVALID_RECORD_STATE
    assert state(machine, first) is ObjectState.PENDING_DELETION
    assert machine.do(RemoveObjectsRequest(1, machine.epoch, [first, first, first + 1, 99])).error_code == 0
    assert [state(machine, i) for i in (first, first + 1, kept)] == [None, None, ObjectState.PREPARED]
    before = machine.image
    assert machine.do(RemoveObjectsRequest(1, machine.epoch, [first])).error_code == 0
    assert machine.image is before
    check_image(machine.image)
