"""What owners ask of streams: open, close, trim; who is fenced, and how."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.kraft.tables.objects import ObjectState
from millrace.kraft.tables.streams import StreamState
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.close_streams import CloseStreamsRequest, StreamClose
from millrace.protocol.messages.commit_upload import CommitUploadRequest, UploadedRange
from millrace.protocol.messages.get_opening_streams import GetOpeningStreamsRequest
from millrace.protocol.messages.open_partition_streams import OpenPartitionStreamsRequest
from millrace.protocol.messages.trim_streams import StreamTrim, TrimStreamsRequest
from millrace.protocol.metadata_records import PartitionChangeRecord
from millrace.s3stream.ids import ObjectId, StreamId
from tests.kraft.check import check_image, holding
from tests.kraft.tables.build import create, open_streams, prepare, topic, topic_id
from tests.kraft.test_replay import CLUSTER, Machine


def made(partitions: int = 2) -> Machine:
    machine = Machine()
    create(machine, topic("t", partitions))
    return machine


def asked(machine: Machine, **changes: Any) -> OpenPartitionStreamsRequest:
    request = OpenPartitionStreamsRequest(1, machine.epoch, topic_id(machine, "t"), 0, 0, [0, 1])
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def committed(machine: Machine, *ranges: tuple[int, int, int]) -> int:
    """The id of a set object that holds them."""
    object_id = prepare(machine)
    request = CommitUploadRequest(1, machine.epoch, object_id, 10, [UploadedRange(*one) for one in ranges])
    assert machine.do(request).error_code == 0
    return object_id


def lead_elsewhere(machine: Machine, leader: int) -> None:
    """As a reassignment will do it."""
    machine.commit(
        [PartitionChangeRecord(0, topic_id(machine, "t"), leader=leader, isr=[leader], replicas=[leader])]
    )


def test_opening_makes_what_is_missing() -> None:
    """Streams in order of the roles asked for; asked again, the same and no record; a new role joins the
    others."""
    machine = made()
    response = machine.do(asked(machine, roles=[1, 0]))
    assert [(s.role, s.stream_id, s.epoch, s.start_offset, s.end_offset) for s in response.streams] == [
        (1, 0, 0, 0, 0),
        (0, 1, 0, 0, 0),
    ]
    before = machine.image
    assert machine.do(asked(machine, roles=[1, 0, 1])).streams == response.streams
    assert machine.image is before
    assert [s.stream_id for s in machine.do(asked(machine, roles=[3, 1])).streams] == [2, 0]
    assert [s.role for s in machine.image.streams.of_partition(topic_id(machine, "t"), 0)] == [0, 1, 3]
    check_image(machine.image)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"broker_epoch": 0}, ErrorCode.STALE_BROKER_EPOCH),
        ({"broker_epoch": 99}, ErrorCode.STALE_BROKER_EPOCH),
        ({"node_id": 2}, ErrorCode.BROKER_ID_NOT_REGISTERED),
        ({"topic_id": bytes(16)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"partition_index": 2}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition_index": -1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 1}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"roles": [1, 9]}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_who_may_not_open(changes: dict[str, Any], code: ErrorCode) -> None:
    """A refusal says why and makes nothing, not even the roles before the bad one."""
    machine = made()
    before = machine.image
    response = machine.do(asked(machine, **changes))
    assert ErrorCode(response.error_code) is code
    assert response.error_message
    assert machine.image is before


def test_a_new_leader_waits_for_the_old_ones_close() -> None:
    """Not the leader, then not closed yet, then taken over at the higher epoch; the old owner is fenced."""
    machine = made()
    (stream_id,) = open_streams(machine, "t", 0, 1)
    second = machine.do(BrokerRegistrationRequest(2, CLUSTER, b"\x02" * 16)).broker_epoch
    new = asked(machine, node_id=2, broker_epoch=second, leader_epoch=1, roles=[1])
    lead_elsewhere(machine, 2)
    assert machine.do(asked(machine, leader_epoch=1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert machine.do(new).error_code == ErrorCode.LEADER_NOT_AVAILABLE
    close = CloseStreamsRequest(1, machine.epoch, [StreamClose(stream_id, 0)])
    assert machine.do(close).streams[0].error_code == 0
    opened = machine.do(new)
    assert (opened.error_code, opened.streams[0].stream_id, opened.streams[0].epoch) == (0, stream_id, 1)
    assert machine.do(close).streams[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert [s.stream_id for s in machine.image.streams.open_on(2)] == [stream_id]
    assert list(machine.image.streams.open_on(1)) == []
    check_image(machine.image)


def test_what_a_node_has_open() -> None:
    """Asked at its start by the new incarnation: the old one is refused from then on."""
    machine = made()
    first, second = open_streams(machine, "t", 0, 0, 1)
    committed(machine, (second, 0, 5))
    machine.do(CloseStreamsRequest(1, machine.epoch, [StreamClose(first, 0)]))
    old = machine.epoch
    machine.epoch = machine.do(BrokerRegistrationRequest(1, CLUSTER, b"\x05" * 16)).broker_epoch
    assert machine.epoch > old
    response = machine.do(GetOpeningStreamsRequest(1, machine.epoch))
    assert [(s.stream_id, s.epoch, s.start_offset, s.end_offset) for s in response.streams] == [
        (second, 0, 0, 5)
    ]
    for request in (
        GetOpeningStreamsRequest(1, old),
        CloseStreamsRequest(1, old, [StreamClose(second, 0)]),
        TrimStreamsRequest(1, old, [StreamTrim(second, 0, 1)]),
        CommitUploadRequest(1, old, 0, 0),
    ):
        assert machine.do(request).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_closing() -> None:
    """Closed twice is closed; a stream that nobody has, or another epoch's, is told so; each stream for
    itself."""
    machine = made()
    stream_id = open_streams(machine, "t")[0]
    request = CloseStreamsRequest(
        1, machine.epoch, [StreamClose(stream_id, 0), StreamClose(77, 0), StreamClose(stream_id, 0)]
    )
    assert [(s.stream_id, s.error_code) for s in machine.do(request).streams] == [(stream_id, 0), (77, 91)]
    before = machine.image
    assert machine.do(request).streams[0].error_code == 0
    assert machine.image is before
    request = CloseStreamsRequest(1, machine.epoch, [StreamClose(stream_id, 3)])
    assert machine.do(request).streams[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


def trim(machine: Machine, stream_id: int, start: int, epoch: int = 0) -> int:
    request = TrimStreamsRequest(1, machine.epoch, [StreamTrim(stream_id, epoch, start)])
    code: int = machine.do(request).streams[0].error_code
    return code


def stream_of(machine: Machine, stream_id: int) -> StreamState:
    return machine.image.streams.by_id[StreamId(stream_id)]


def test_trimming() -> None:
    """Forwards only; sets that share a range are marked for deletion with it, once no stream has anything
    left on their group."""
    machine = made()
    one, two = open_streams(machine, "t", 0, 0, 1)
    shared = committed(machine, (one, 0, 10), (two, 0, 10))
    own = committed(machine, (one, 10, 20))
    assert trim(machine, one, 10) == 0
    assert holding(machine.image, one, 25) == []
    assert holding(machine.image, one, 10) == [shared, own]
    assert machine.image.objects.by_id[ObjectId(shared)].alive == 2
    before = machine.image
    assert trim(machine, one, 10) == trim(machine, one, 3) == 0
    assert machine.image is before
    machine.now_ms = 5_000
    assert trim(machine, two, 10) == 0
    assert trim(machine, one, 20) == 0
    marked = machine.image.objects.by_id[ObjectId(shared)]
    assert (marked.state, marked.time_ms, marked.was_committed) == (ObjectState.PENDING_DELETION, 5_000, True)
    check_image(machine.image)


def test_trimming_beyond_the_end_lifts_it() -> None:
    """What the owner's WAL holds below the new start is wanted no more; the next commit may begin before
    it."""
    machine = made()
    (stream_id,) = open_streams(machine, "t", 0, 1)
    committed(machine, (stream_id, 0, 10))
    assert trim(machine, stream_id, 25) == 0
    stream = machine.image.streams.by_id[StreamId(stream_id)]
    assert (stream.start, stream.end) == (25, 25)
    assert machine.image.objects.committed_count == 0
    object_id = committed(machine, (stream_id, 10, 30))
    (hint,) = machine.image.objects.candidates(stream_of(machine, stream_id), 25, 9)
    assert (hint.object_id, hint.start, hint.end) == (object_id, 25, 30)
    check_image(machine.image)


def test_who_may_not_trim() -> None:
    """Not another epoch's owner, and not of a stream that is closed."""
    machine = made()
    stream_id = open_streams(machine, "t")[0]
    assert trim(machine, stream_id, 5, epoch=1) == ErrorCode.FENCED_LEADER_EPOCH
    assert trim(machine, 77, 5) == ErrorCode.RESOURCE_NOT_FOUND
    machine.do(CloseStreamsRequest(1, machine.epoch, [StreamClose(stream_id, 0)]))
    assert trim(machine, stream_id, 5) == ErrorCode.FENCED_LEADER_EPOCH
