"""CreateTopics and CreatePartitions: Kafka's checks and codes, and what comes of a topic that passes them."""

from __future__ import annotations

import pytest

from millrace.kraft.commands.create_topics import (
    NAMES_PER_CHUNK,
    TOPICS_PER_CHUNK,
    decide_create_topics_yielding,
)
from millrace.kraft.topic_configs import TOPIC_CONFIGS, ConfigSource
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from millrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tests.kraft.check import check_image
from tests.kraft.tables.build import create, topic
from tests.kraft.test_replay import CLUSTER, Machine

OK = ErrorCode.NONE


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (topic("a", 1, 1), OK),
        (topic("a", -1, -1), OK),
        (topic("a", 3, 3), OK),  # any factor from 1 up
        (topic("a", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("a", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("a", 0, 1), ErrorCode.INVALID_PARTITIONS),
        (topic("a", -2, 1), ErrorCode.INVALID_PARTITIONS),
        (topic("a", 10_001, 1), ErrorCode.POLICY_VIOLATION),
        (topic("", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic(".", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("..", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a" * 249, 1, 1), OK),
        (topic("a" * 250, 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a b", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a\n", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("é", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("__cluster_metadata", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),  # the metadata log
        (topic("taken", 1, 1), ErrorCode.TOPIC_ALREADY_EXISTS),
        (topic("has_dot", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),  # has.dot is there
        (topic("a", assignments={0: [1]}), OK),
        (topic("a", assignments={1: [1], 0: [1]}), OK),
        (topic("a", 1, assignments={0: [1]}), ErrorCode.INVALID_REQUEST),
        (topic("a", -1, 1, assignments={0: [1]}), ErrorCode.INVALID_REQUEST),
        (topic("a", assignments={1: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("a", assignments={0: [1, 1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("a", assignments={0: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("a", assignments={0: [2]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("a", 1, 1, retention_ms="5"), OK),
        (topic("a", 1, 1, retention_ms="soon"), ErrorCode.INVALID_CONFIG),
        (topic("a", 1, 1, retention_ms=None), ErrorCode.INVALID_CONFIG),
        (topic("a", 1, 1, no_such_config="5"), ErrorCode.INVALID_CONFIG),
        (topic("a", 1, 1, remote_storage_enable="true"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_what_is_taken(asked: CreatableTopic, code: ErrorCode) -> None:
    """Each fault has Kafka's code and a text, and leaves nothing behind."""
    machine = Machine()
    assert [result.error_code for result in create(machine, topic("taken", 1), topic("has.dot", 1))] == [0, 0]
    before = machine.image
    (result,) = create(machine, asked)
    assert (ErrorCode(result.error_code), result.error_message is None) == (code, code is OK)
    assert (machine.image is before) == (code is not OK)
    check_image(machine.image)


def test_a_topic_that_was_created() -> None:
    """Its id, partitions led by the one replica, stored values, and the answer that says what holds."""
    machine = Machine()
    (result,) = create(machine, topic("t", 2, 3, retention_ms=" 77 "))
    found = machine.image.topics.by_name("t")
    assert found is not None
    assert found.topic_id == result.topic_id != bytes(16)
    assert (result.num_partitions, result.replication_factor, result.topic_config_error_code) == (2, 1, 0)
    assert [(p.leader, p.replicas, p.isr, p.leader_epoch) for p in found.partitions] == [
        (1, (1,), (1,), 0)
    ] * 2
    assert dict(machine.image.configs.topic("t")) == {"retention.ms": "77"}
    assert result.configs is not None
    shown = {config.name: (config.value, config.config_source) for config in result.configs}
    assert list(shown) == list(TOPIC_CONFIGS)
    assert shown["retention.ms"] == ("77", ConfigSource.TOPIC)
    assert shown["segment.bytes"] == (str(1 << 30), ConfigSource.DEFAULT)


def test_validating_changes_nothing() -> None:
    """The answer is that of a creation, without an id."""
    machine = Machine()
    before = machine.image
    (result,) = create(machine, topic("t", 2), validate_only=True)
    assert (result.error_code, result.num_partitions, result.topic_id) == (0, 2, bytes(16))
    assert machine.image is before


def test_topics_of_a_request_stand_or_fall_alone() -> None:
    """A name given twice fails both times; others pass; two that collide in one request do not both."""
    machine = Machine()
    results = create(
        machine, topic("twice", 1), topic("twice", 2), topic("x.y", 1), topic("x_y", 1), topic("ok", 1)
    )
    assert {result.name: result.error_code for result in results} == {
        "twice": ErrorCode.INVALID_REQUEST,
        "x.y": 0,
        "x_y": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "ok": 0,
    }
    assert [found.name for found in machine.image.topics] == ["ok", "x.y"]


def test_a_request_of_many_names_is_counted_and_refused_in_chunks() -> None:
    """One name again and again, or too many of them: no step is more than so many, and each name is answered
    once."""
    for names, answered in ((["same"] * 50_000, 1), ([f"t{place}" for place in range(20_000)], 20_000)):
        request = CreateTopicsRequest([topic(name, 1) for name in names])
        machine = Machine()
        steps = decide_create_topics_yielding(machine.image, request, machine.creation)
        count = 0
        while True:
            try:
                next(steps)
            except StopIteration as end:
                decision = end.value
                break
            count += 1
        assert count >= len(names) // NAMES_PER_CHUNK + answered // TOPICS_PER_CHUNK
        assert [result.error_code for result in decision.response.topics] == [
            ErrorCode.POLICY_VIOLATION
        ] * answered
        assert not decision.records


def test_the_bound_on_partitions_is_the_requests() -> None:
    """Ten thousand in all, as Kafka has it: one more and the request is refused whole."""
    machine = Machine()
    results = create(machine, topic("a", 6_000), topic("b", 4_001))
    assert [result.error_code for result in results] == [ErrorCode.POLICY_VIOLATION] * 2
    assert [result.error_code for result in create(machine, topic("a", 6_000), topic("b", 4_000))] == [0, 0]


def test_what_is_named_again_is_looked_at_once() -> None:
    """Of a configuration the last value counts; a broker that is named a million times is not repeated to its
    client."""
    machine = Machine()
    asked = topic("t", 1)
    asked.configs = [CreatableTopicConfig("retention.ms", value) for value in ["soon"] * 100_000 + ["77"]]
    (result,) = create(machine, asked)
    assert result.error_code == 0
    assert dict(machine.image.configs.topic("t")) == {"retention.ms": "77"}
    (result,) = create(machine, topic("u", assignments={0: [1] * 1_000_000}))
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert result.error_message is not None
    assert len(result.error_message) < 1_000


def test_nobody_to_lead() -> None:
    """Without a broker that is not fenced there is no replica to be had."""
    machine = Machine()
    machine.do(BrokerHeartbeatRequest(1, machine.epoch, machine.image.offset, want_fence=True))
    assert create(machine, topic("a", 1))[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_leaders_take_turns() -> None:
    """With several brokers partitions are spread; a manual assignment's first broker leads, its log directory
    is noted."""
    machine = Machine()
    directory = bytes(range(16))
    machine.do(BrokerRegistrationRequest(2, CLUSTER, bytes(16), log_dirs=[directory]))
    create(machine, topic("spread", 4))
    create(machine, topic("placed", assignments={0: [2, 1]}))
    spread, placed = machine.image.topics.by_name("spread"), machine.image.topics.by_name("placed")
    assert spread is not None
    assert placed is not None
    assert sorted(state.leader for state in spread.partitions) == [1, 1, 2, 2]
    assert (placed.partitions[0].leader, placed.partitions[0].replicas) == (2, (2,))
    assert placed.partitions[0].directories == (directory,)


@pytest.mark.parametrize("is_longer_first", [True, False])
def test_partitions_of_one_request_name_as_many_brokers(is_longer_first: bool) -> None:
    """One leads each all the same; who asks for this has made a mistake, of which Kafka tells too."""
    machine = Machine()
    machine.do(BrokerRegistrationRequest(2, CLUSTER, bytes(16), log_dirs=[bytes(range(16))]))
    lists = [[1, 2], [1]] if is_longer_first else [[1], [1, 2]]
    (refused,) = create(machine, topic("a", assignments=dict(enumerate(lists))))
    assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    create(machine, topic("t", 1))
    asked = CreatePartitionsTopic("t", 3, [CreatePartitionsAssignment(one) for one in lists])
    (refused,) = machine.do(CreatePartitionsRequest([asked])).results
    assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    topics = machine.image.topics
    assert topics.by_name("a") is None
    assert (found := topics.by_name("t")) is not None
    assert len(found.partitions) == 1


@pytest.mark.parametrize(
    ("name", "count", "assigned", "code"),
    [
        ("t", 3, None, OK),
        ("t", 3, [[1]], OK),
        ("t", 2, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 1, None, ErrorCode.INVALID_PARTITIONS),
        ("t", 4, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 3, [[9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("t", 20_000, None, ErrorCode.POLICY_VIOLATION),
        ("no", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_more_partitions(name: str, count: int, assigned: list[list[int]] | None, code: ErrorCode) -> None:
    """Only upwards; the assignments, where given, are of the new ones."""
    machine = Machine()
    create(machine, topic("t", 2))
    assignments = None if assigned is None else [CreatePartitionsAssignment(brokers) for brokers in assigned]
    request = CreatePartitionsRequest([CreatePartitionsTopic(name, count, assignments)])
    (result,) = machine.do(request).results
    assert (ErrorCode(result.error_code), result.error_message is None) == (code, code is OK)
    found = machine.image.topics.by_name("t")
    assert found is not None
    assert len(found.partitions) == (count if code is OK else 2)
    request.validate_only = True
    request.topics[0].count += 1
    before = machine.image
    machine.do(request)
    assert machine.image is before


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
def test_topics_whose_keys_are_found_by_their_count_keep_it(name: str, validate_only: bool) -> None:
    """One partition more, and the offsets that groups have committed would be looked for elsewhere: refused,
    with the reason, whatever else the request asks for."""
    machine = Machine()
    create(machine, topic(name, 4), topic("plain", 1))
    asked = [CreatePartitionsTopic(name, 5, None), CreatePartitionsTopic("plain", 2, None)]
    refused, taken = machine.do(CreatePartitionsRequest(asked, validate_only=validate_only)).results
    assert (refused.error_code, taken.error_code) == (ErrorCode.INVALID_PARTITIONS, 0)
    assert "is found by that number" in refused.error_message
    found, plain = machine.image.topics.by_name(name), machine.image.topics.by_name("plain")
    assert found is not None
    assert plain is not None
    assert (len(found.partitions), len(plain.partitions)) == (4, 1 if validate_only else 2)


def test_no_topics() -> None:
    """An empty request has an empty answer."""
    machine = Machine()
    before = machine.image
    assert machine.do(CreateTopicsRequest()).topics == []
    assert machine.image is before
