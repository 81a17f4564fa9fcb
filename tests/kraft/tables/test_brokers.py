"""Registration, heartbeats, producer ids; elections and reassignments, which find nothing to do; feature
levels."""

from __future__ import annotations

import pytest

from millrace.kraft.commands.brokers import decide_fence_brokers
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from millrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millrace.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from millrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from millrace.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from millrace.protocol.metadata_records import FeatureLevelRecord
from tests.kraft.tables.build import create, topic
from tests.kraft.test_replay import CLUSTER, Machine

ASSIGNMENT = "The manual partition assignment includes"


def register(
    machine: Machine, incarnation: int, broker_id: int = 1, cluster: str = CLUSTER
) -> tuple[int, int]:
    request = BrokerRegistrationRequest(
        broker_id,
        cluster,
        bytes([incarnation]) * 16,
        [Listener("PLAINTEXT", "h", 9092, 0)],
        [Feature("metadata.version", 1, 30)],
        "rack",
        log_dirs=[b"\x09" * 16],
    )
    response = machine.do(request)
    return response.error_code, response.broker_epoch


def test_registration() -> None:
    """The epoch is the record's offset; a retry keeps it, a new incarnation has a higher one; another cluster
    is refused."""
    machine = Machine()
    offset = machine.image.offset
    assert register(machine, 7) == (0, offset)
    assert register(machine, 7) == (0, offset)
    later = machine.image.offset
    assert register(machine, 8) == (0, later)
    assert register(machine, 9, cluster="other") == (ErrorCode.INCONSISTENT_CLUSTER_ID, -1)
    assert register(machine, 9, broker_id=-1) == (ErrorCode.INVALID_REGISTRATION, -1)
    broker = machine.image.brokers.get(1)
    assert broker is not None
    endpoint = broker.endpoint("PLAINTEXT")
    assert endpoint is not None
    assert (endpoint.host, endpoint.port, broker.rack, broker.is_usable) == ("h", 9092, "rack", True)
    assert broker.endpoint("SSL") is None
    assert [broker.broker_id for broker in machine.image.brokers] == [1]


def test_heartbeats() -> None:
    """Fenced when asked for, unfenced once caught up; what does not change is not written."""
    machine = Machine()

    def beat(offset: int, **wants: bool) -> tuple[bool, bool]:
        response = machine.do(BrokerHeartbeatRequest(1, machine.epoch, offset, **wants))
        assert response.error_code == 0
        return response.is_caught_up, response.is_fenced

    before = machine.image
    assert beat(machine.epoch) == (True, False)
    assert machine.image is before
    assert beat(machine.epoch, want_fence=True) == (True, True)
    assert beat(machine.epoch - 1) == (False, True)
    assert beat(machine.epoch) == (True, False)
    assert machine.do(BrokerHeartbeatRequest(1, machine.epoch, 0, want_shut_down=True)).should_shut_down
    assert machine.do(BrokerHeartbeatRequest(1, 0)).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert machine.do(BrokerHeartbeatRequest(5, 0)).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_unregistering() -> None:
    """Once, and not while it lives: it would lead nothing and not know it. Then the broker's calls are
    refused."""
    machine = Machine()
    refused = machine.do(UnregisterBrokerRequest(1))
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.INVALID_REQUEST,
        "Broker 1 is running: stop it, then unregister it",
    )
    machine.do(BrokerHeartbeatRequest(1, machine.epoch, machine.epoch, want_fence=True))
    assert machine.do(UnregisterBrokerRequest(1)).error_code == 0
    assert machine.do(UnregisterBrokerRequest(1)).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    response = machine.do(AllocateProducerIdsRequest(1, machine.epoch))
    assert response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_producer_ids() -> None:
    """Blocks of a thousand, no id twice."""
    machine = Machine()
    blocks = [machine.do(AllocateProducerIdsRequest(1, machine.epoch)) for _ in range(3)]
    assert [(block.producer_id_start, block.producer_id_len) for block in blocks] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]
    assert machine.do(AllocateProducerIdsRequest(1, 0)).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert machine.image.producer_ids == 3000


def test_elections_are_never_needed() -> None:
    """Named partitions are told so, unknown ones too; where all are meant, none is named."""
    machine = Machine()
    create(machine, topic("t", 2))
    asked = [TopicPartitions("t", [0, 1, 2]), TopicPartitions("no", [0])]
    results = machine.do(ElectLeadersRequest(0, asked)).replica_election_results
    assert [(r.topic, [p.error_code for p in r.partition_result]) for r in results] == [
        (
            "t",
            [
                ErrorCode.ELECTION_NOT_NEEDED,
                ErrorCode.ELECTION_NOT_NEEDED,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ],
        ),
        ("no", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
    ]
    assert machine.do(ElectLeadersRequest(1, None)).replica_election_results == []
    assert machine.do(ElectLeadersRequest(7, None)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("name", "index", "replicas", "code", "text"),
    [
        ("t", 0, [1], ErrorCode.NONE, None),
        ("t", 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None),
        ("t", 0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{ASSIGNMENT} an empty replica list."),
        ("t", 0, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{ASSIGNMENT} the broker 1 more than once."),
        (
            "t",
            0,
            [3, 1, 3],
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{ASSIGNMENT} broker 3, but no such broker is registered.",
        ),
        (
            "t",
            0,
            [1, 2],
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "A partition has one replica, whose broker leads it: name one.",
        ),
        ("t", 5, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition t:5."),
        ("no", 0, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find a topic named no."),
    ],
)
def test_reassignments(
    name: str, index: int, replicas: list[int] | None, code: ErrorCode, text: str | None
) -> None:
    """The present replica is done at once; nothing is under way. What is refused is refused in the words
    of Kafka 4.3, but for what no partition of Kafka's is bound to."""
    machine = Machine()
    create(machine, topic("t", assignments={0: [1]}))
    register(machine, 2, broker_id=2)
    before = machine.image
    asked = [ReassignableTopic(name, [ReassignablePartition(index, replicas)])]
    response = machine.do(AlterPartitionReassignmentsRequest(topics=asked))
    assert (response.error_code, response.responses[0].name) == (0, name)
    (answer,) = response.responses[0].partitions
    assert (ErrorCode(answer.error_code), answer.error_message) == (code, text)
    assert machine.image is before
    assert machine.do(ListPartitionReassignmentsRequest(topics=None)).topics == []


@pytest.mark.parametrize(
    ("updates", "code"),
    [
        ([], ErrorCode.NONE),
        ([FeatureUpdateKey("metadata.version", 30)], ErrorCode.NONE),
        ([FeatureUpdateKey("transaction.version", 0)], ErrorCode.NONE),
        ([FeatureUpdateKey("transaction.version", 2)], ErrorCode.INVALID_UPDATE_VERSION),
        ([FeatureUpdateKey("millrace.version", 3)], ErrorCode.NONE),
        ([FeatureUpdateKey("millrace.version", 4)], ErrorCode.INVALID_UPDATE_VERSION),
        ([FeatureUpdateKey("millrace.version", 2, upgrade_type=2)], ErrorCode.INVALID_UPDATE_VERSION),
        ([FeatureUpdateKey("millrace.version", 0, upgrade_type=2)], ErrorCode.INVALID_UPDATE_VERSION),
        ([FeatureUpdateKey("millrace.version", 0, upgrade_type=3)], ErrorCode.INVALID_UPDATE_VERSION),
        ([FeatureUpdateKey("metadata.version", 31)], ErrorCode.INVALID_UPDATE_VERSION),
        ([FeatureUpdateKey("metadata.version", 29, upgrade_type=3)], ErrorCode.INVALID_UPDATE_VERSION),
        ([FeatureUpdateKey("unheard.of", 1)], ErrorCode.INVALID_UPDATE_VERSION),
        (
            [FeatureUpdateKey("group.version", 0), FeatureUpdateKey("group.version", 0)],
            ErrorCode.INVALID_REQUEST,
        ),
        ([FeatureUpdateKey("group.version", 0, upgrade_type=9)], ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
def test_feature_updates(updates: list[FeatureUpdateKey], code: ErrorCode) -> None:
    """Levels that are not served are refused with the whole request."""
    machine = Machine()
    before = machine.image
    response = machine.do(UpdateFeaturesRequest(feature_updates=updates))
    assert (ErrorCode(response.error_code), response.error_message is None) == (code, code is ErrorCode.NONE)
    assert machine.image is before


def test_a_level_that_a_broker_does_not_know_is_refused() -> None:
    """Also of one that is gone, until it is unregistered."""
    machine = Machine()
    register(machine, 1)
    for broker_id, highest in ((2, 2), (3, 1)):
        feature = [Feature("millrace.version", 0, highest)]
        machine.do(BrokerRegistrationRequest(broker_id, CLUSTER, bytes([broker_id]) * 16, features=feature))
    asked = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey("millrace.version", 2)])
    machine.commit([FeatureLevelRecord("millrace.version", 1)])
    machine.commit(list(decide_fence_brokers(machine.image, [1, 3])))
    machine.do(UnregisterBrokerRequest(1))
    response = machine.do(asked)
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "Broker 3 supports versions 0-1: upgrade it first" in response.error_message
    machine.do(UnregisterBrokerRequest(3))
    assert machine.do(asked).error_code == 0
    assert machine.image.features.level("millrace.version") == 2
