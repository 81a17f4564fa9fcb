"""DeleteTopics: by name and by id, with all that hangs on a topic, in one commit."""

from __future__ import annotations

from millrace.kraft.commands.delete_topics import NAMES_PER_CHUNK, decide_delete_topics_yielding
from millrace.kraft.tables.objects import ObjectState
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.commit_upload import CommitUploadRequest, UploadedRange, UploadedStreamObject
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.s3stream.ids import ObjectId
from tests.kraft.check import check_image, holding
from tests.kraft.tables.build import create, open_streams, prepare, topic, topic_id
from tests.kraft.test_replay import Machine


def test_what_is_deleted() -> None:
    """Names of old requests and states of new ones; unknown ones, doubles and contradictions are told
    apart."""
    machine = Machine()
    create(machine, *(topic(name, 1) for name in "abcd"))
    by_id = topic_id(machine, "b")
    request = DeleteTopicsRequest(
        [
            DeleteTopicState("a"),
            DeleteTopicState(None, by_id),
            DeleteTopicState("c", topic_id(machine, "c")),
            DeleteTopicState("no"),
            DeleteTopicState(None, b"\x07" * 16),
            DeleteTopicState(None),
            DeleteTopicState("b"),
        ],
        ["d", "d"],
    )
    results = machine.do(request).responses
    assert [(result.name, ErrorCode(result.error_code)) for result in results] == [
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.NONE),
        ("c", ErrorCode.INVALID_REQUEST),
        ("no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
        (None, ErrorCode.INVALID_REQUEST),
        ("b", ErrorCode.INVALID_REQUEST),
        ("d", ErrorCode.INVALID_REQUEST),
    ]
    assert results[1].topic_id == by_id
    assert [found.name for found in machine.image.topics] == ["c", "d"]


def test_streams_and_objects_go_in_the_same_commit() -> None:
    """The topic's streams are gone and its own objects marked for deletion; a set object stays while another
    topic's range is in it."""
    machine = Machine()
    create(machine, topic("old", 2, retention_ms="5"), topic("new", 1))
    first, second = open_streams(machine, "old", 0, 1)[0], open_streams(machine, "old", 1, 1)[0]
    other = open_streams(machine, "new", 0, 1)[0]
    shared, own = prepare(machine, 2), 1
    commit = CommitUploadRequest(1, machine.epoch, shared, 100)
    commit.ranges = [UploadedRange(first, 0, 5), UploadedRange(other, 0, 7)]
    commit.stream_objects = [UploadedStreamObject(own, 50, second, 0, 9)]
    assert machine.do(commit).error_code == 0
    batches = len(machine.batches)
    machine.do(DeleteTopicsRequest([DeleteTopicState("old")]))
    assert len(machine.batches) == batches + 1
    check_image(machine.image)
    objects = machine.image.objects
    assert [objects.by_id[ObjectId(i)].state for i in (shared, own)] == [
        ObjectState.COMMITTED,
        ObjectState.PENDING_DELETION,
    ]
    assert holding(machine.image, first, 0) == []
    assert holding(machine.image, other, 0) == [shared]
    assert list(machine.image.streams.by_id) == [other]
    assert dict(machine.image.configs.topic("old")) == {}
    machine.do(DeleteTopicsRequest([DeleteTopicState("new")]))
    check_image(machine.image)
    assert objects.by_id[ObjectId(shared)].state is ObjectState.COMMITTED, "an older image stays as it was"
    assert machine.image.objects.by_id[ObjectId(shared)].state is ObjectState.PENDING_DELETION


def test_a_name_can_be_used_again() -> None:
    """A new topic of the old name has another id, and nothing of the old one's configuration."""
    machine = Machine()
    create(machine, topic("a.b", 1, retention_ms="5"))
    before = topic_id(machine, "a.b")
    machine.do(DeleteTopicsRequest([DeleteTopicState("a.b")]))
    assert create(machine, topic("a_b", 1))[0].error_code == 0
    machine.do(DeleteTopicsRequest([DeleteTopicState("a_b")]))
    assert create(machine, topic("a.b", 1))[0].error_code == 0
    assert topic_id(machine, "a.b") != before
    assert dict(machine.image.configs.topic("a.b")) == {}


def test_many_names_are_counted_in_chunks() -> None:
    """One again and again, in old requests and in new ones, is answered once."""
    request = DeleteTopicsRequest([DeleteTopicState("same")] * 50_000, ["same"] * 50_000)
    steps = decide_delete_topics_yielding(Machine().image, request, 0)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            (result,) = end.value.response.responses
            break
        count += 1
    assert count == 2 * 50_000 // NAMES_PER_CHUNK
    assert result.error_code == ErrorCode.INVALID_REQUEST
