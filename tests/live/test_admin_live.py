"""Administration by real clients against a live broker: kafka-python's and confluent-kafka's admin clients,
and single requests.

What each API answers to a wrong input is a table of codes (Kafka's); what clients make of the right ones is
seen through the clients.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicCollection
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    NewPartitions,
    ResourcePatternType,
)
from confluent_kafka.admin import ConfigResource as ConfluentResource
from confluent_kafka.admin import NewTopic as ConfluentTopic
from confluent_kafka.admin import ResourceType as ConfluentType
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import TopicPartitionReplica

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages import (
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_topics,
    describe_acls,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    find_coordinator,
    incremental_alter_configs,
    list_config_resources,
    list_transactions,
    metadata,
    unregister_broker,
    update_features,
)
from millrace.protocol.messages.api_versions import ApiVersionsRequest
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.wire import Wire
from tests.patience import PATIENCE_S, until

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    overrides = {
        "num.partitions": "2",
        "broker.rack": "zone-1",
        "log.retention.hours": "24",
        "s3.object.delete.retention.minutes": "0",
        "s3.wal.upload.interval.ms": "100",
    }
    with LiveBroker(tmp_path_factory.mktemp("admin"), overrides, wal="64MiB") as running:
        client = confluent(running)
        wait(client.create_topics([ConfluentTopic("there", 3, 1), ConfluentTopic("col.x", 1, 1)]))
        yield running


@pytest.fixture(scope="module")
def admin(broker: LiveBroker) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.address)
    yield client
    client.close()


@pytest.fixture(scope="module")
def theirs(broker: LiveBroker) -> AdminClient:
    """confluent-kafka's."""
    return confluent(broker)


@pytest.fixture(scope="module")
def wire(broker: LiveBroker) -> Iterator[Wire]:
    with Wire(broker.address) as client:
        yield client


def confluent(broker: LiveBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address, "log_level": 0})


def wait(futures: dict[Any, Any]) -> dict[Any, Any]:
    """Every result, or the code it was refused with."""
    found = {}
    for name, future in futures.items():
        try:
            found[name] = future.result(PATIENCE_S)
        except KafkaException as error:
            found[name] = error.args[0].code()
    return found


def codes_of(response: Any) -> list[int]:
    """Every error in a response, in order, the top one first."""
    if isinstance(response, list):
        return [code for item in response for code in codes_of(item)]
    names = getattr(response, "__dataclass_fields__", ())
    nested = [code for name in names for code in codes_of(getattr(response, name))]
    own = int(getattr(response, "error_code", 0))
    return [own, *nested] if own else nested


# What kind of Kafka this is


def test_a_client_infers_a_release_of_kafka_4(admin: KafkaAdminClient) -> None:
    """The ranges shown fit one release: kafka-python, which guesses from single APIs, lands on the newest
    that it knows."""
    assert admin.get_broker_version_data(1).broker_version == (4, 3)


def test_the_cluster(broker: LiveBroker, admin: KafkaAdminClient, theirs: AdminClient) -> None:
    """Both clients see one broker at the address they used, its rack, and the operations that everybody may
    do."""
    found = admin.describe_cluster()
    host, port = broker.address.split(":")
    shown = {"broker_id": 1, "host": host, "port": int(port), "rack": "zone-1", "is_fenced": False}
    assert found["brokers"] == [shown]
    assert found["controller_id"] == 1
    assert {"CREATE", "ALTER", "DESCRIBE_CONFIGS"} <= set(found["authorized_operations"])
    cluster = theirs.describe_cluster(include_authorized_operations=True).result(PATIENCE_S)
    assert cluster.cluster_id == found["cluster_id"]
    assert [(node.id, node.host, node.port, node.rack) for node in cluster.nodes] == [
        (1, host, int(port), "zone-1")
    ]


def test_features_and_quorum(admin: KafkaAdminClient) -> None:
    """Only what is served is finalized; the quorum is this node, caught up; a level nobody has is refused
    whole."""
    features = admin.describe_features()
    assert features["metadata.version"]["finalized"] == features["metadata.version"]["supported"] == (30, 30)
    assert features["millrace.version"]["finalized"] == (3, 3)
    assert set(features) == {"metadata.version", "millrace.version", "kraft.version"}
    (topic,) = admin.describe_metadata_quorum()["topics"]
    (quorum,) = topic["partitions"]
    (voter,) = quorum["current_voters"]
    assert (quorum["leader_id"], voter["replica_id"], quorum["error"]) == (1, 1, None)
    assert voter["log_end_offset"] >= quorum["high_watermark"] > 0
    with pytest.raises(kafka_errors.InvalidUpdateVersionError):
        admin.update_features({"transaction.version": (2, 1)})


# Topics


def test_a_topic_from_creation_to_deletion(admin: KafkaAdminClient, theirs: AdminClient) -> None:
    """Created with defaults and with choices, listed, described, grown and deleted, through both clients."""
    admin.create_topics({"life-1": {"num_partitions": 3, "replication_factor": 3}})
    made = wait(theirs.create_topics([ConfluentTopic("life-2", config={"retention.ms": "5000"})]))
    assert made == {"life-2": None}
    assert {"life-1", "life-2"} <= set(admin.list_topics())
    described = wait(
        theirs.describe_topics(TopicCollection(["life-1", "life-2"]), include_authorized_operations=True)
    )
    assert [len(described[name].partitions) for name in ("life-1", "life-2")] == [3, 2]
    partition = described["life-1"].partitions[0]
    assert (partition.leader.id, [node.id for node in partition.replicas]) == (1, [1])
    assert AclOperation.WRITE in described["life-1"].authorized_operations
    admin.create_partitions({"life-1": 5})
    (shown,) = admin.describe_topics(["life-1"])
    assert [found["partition_index"] for found in shown["partitions"]] == [0, 1, 2, 3, 4]
    pages = admin.describe_topic_partitions(["life-1"], response_partition_limit=2)
    assert sum(len(found["partitions"]) for found in pages["topics"]) == 2
    assert (pages["next_cursor"]["topic_name"], pages["next_cursor"]["partition_index"]) == ("life-1", 2)
    admin.delete_topics(["life-1"])
    assert wait(theirs.delete_topics(["life-2"])) == {"life-2": None}
    assert not {"life-1", "life-2"} & set(admin.list_topics())


def test_asking_only_creates_nothing(theirs: AdminClient, wire: Wire) -> None:
    """validate_only says what would be, and does nothing."""
    assert wait(theirs.create_topics([ConfluentTopic("only-asked", 1, 1)], validate_only=True)) == {
        "only-asked": None
    }
    assert wait(theirs.create_partitions([NewPartitions("there", 9)], validate_only=True)) == {"there": None}
    response = wire.ask(3, 12, metadata.MetadataRequest(topics=None))
    shown = {topic.name: len(topic.partitions) for topic in response.topics}
    assert shown["there"] == 3
    assert "only-asked" not in shown


def test_metadata_creates_what_is_named(wire: Wire) -> None:
    """A name nobody has becomes a topic with the broker's defaults in the same answer; a request that does
    not allow it, a name that no topic may have, and an internal topic this broker has no use for do not."""
    asked = [
        metadata.MetadataRequestTopic(name=name)
        for name in ("on-the-way", "not a name", "__transaction_state")
    ]
    request = metadata.MetadataRequest(topics=asked)
    response = wire.ask(3, 12, request)
    found = {topic.name: (topic.error_code, len(topic.partitions)) for topic in response.topics}
    assert found == {
        "on-the-way": (0, 2),
        "not a name": (ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
        "__transaction_state": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
    }
    asked = [metadata.MetadataRequestTopic(name=name) for name in ("not-on-the-way", "not a name")]
    response = wire.ask(3, 12, metadata.MetadataRequest(topics=asked, allow_auto_topic_creation=False))
    assert [topic.error_code for topic in response.topics] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]


def test_many_names_at_once_are_created_together(wire: Wire) -> None:
    """250 unknown names in one request become 250 topics."""
    asked = [metadata.MetadataRequestTopic(name=f"crowd-{number}") for number in range(250)]
    response = wire.ask(3, 12, metadata.MetadataRequest(topics=asked))
    assert {topic.error_code for topic in response.topics} == {0}
    names = [f"crowd-{number}" for number in range(250)]
    gone = wire.ask(20, 5, delete_topics.DeleteTopicsRequest(topic_names=names))
    assert {result.error_code for result in gone.responses} == {0}


# Wrong inputs: (api, version, request) and the codes, top one first


def creation(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> create_topics.CreatableTopic:
    return create_topics.CreatableTopic(name, partitions, factor, **more)


def assigned(*replicas: tuple[int, list[int]], **more: Any) -> create_topics.CreatableTopic:
    assignments = [create_topics.CreatableReplicaAssignment(index, brokers) for index, brokers in replicas]
    return creation("assigned", -1, -1, assignments=assignments, **more)


def creating(*topics: create_topics.CreatableTopic) -> tuple[int, int, Any]:
    return 19, 7, create_topics.CreateTopicsRequest(topics=list(topics))


def configured(**configs: str | None) -> create_topics.CreatableTopic:
    values = [
        create_topics.CreatableTopicConfig(name.replace("_", "."), value) for name, value in configs.items()
    ]
    return creation("configured", configs=values)


def growing(name: str, count: int, assignments: list[list[int]] | None = None) -> tuple[int, int, Any]:
    kind = create_partitions.CreatePartitionsAssignment
    chosen = None if assignments is None else [kind(brokers) for brokers in assignments]
    topic = create_partitions.CreatePartitionsTopic(name, count, chosen)
    return 37, 3, create_partitions.CreatePartitionsRequest(topics=[topic])


def changing(kind: int, name: str, *changes: tuple[str, int, str | None]) -> tuple[int, int, Any]:
    configs = [incremental_alter_configs.AlterableConfig(*change) for change in changes]
    resource = incremental_alter_configs.AlterConfigsResource(kind, name, configs)
    return 44, 1, incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])


def replacing(kind: int, name: str, *values: tuple[str, str | None]) -> tuple[int, int, Any]:
    configs = [alter_configs.AlterableConfig(*value) for value in values]
    return (
        33,
        2,
        alter_configs.AlterConfigsRequest(
            resources=[alter_configs.AlterConfigsResource(kind, name, configs)]
        ),
    )


def describing(kind: int, name: str) -> tuple[int, int, Any]:
    resource = describe_configs.DescribeConfigsResource(kind, name, None)
    return 32, 4, describe_configs.DescribeConfigsRequest(resources=[resource])


def deleting(*states: tuple[str | None, bytes]) -> tuple[int, int, Any]:
    topics = [delete_topics.DeleteTopicState(*state) for state in states]
    return 20, 6, delete_topics.DeleteTopicsRequest(topics=topics)


def moving(name: str, index: int, replicas: list[int] | None) -> tuple[int, int, Any]:
    message = alter_partition_reassignments
    partition = message.ReassignablePartition(index, replicas)
    topics = [message.ReassignableTopic(name, [partition])]
    return 45, 0, message.AlterPartitionReassignmentsRequest(topics=topics)


def electing(kind: int, name: str, index: int) -> tuple[int, int, Any]:
    topics = [elect_leaders.TopicPartitions(name, [index])]
    return 43, 2, elect_leaders.ElectLeadersRequest(election_type=kind, topic_partitions=topics)


def finding(kind: int, *keys: str) -> tuple[int, int, Any]:
    return 10, 4, find_coordinator.FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))


def paging(names: list[str], cursor: tuple[str, int]) -> tuple[int, int, Any]:
    message = describe_topic_partitions
    topics = [message.TopicRequest(name) for name in names]
    return 75, 0, message.DescribeTopicPartitionsRequest(topics=topics, cursor=message.Cursor(*cursor))


SET, DELETE, APPEND = 0, 1, 2
NO_ID = bytes(16)
E = ErrorCode
WRONG: dict[str, tuple[tuple[int, int, Any], list[int]]] = {
    "create: exists": (creating(creation("there")), [E.TOPIC_ALREADY_EXISTS]),
    "create: named twice": (creating(creation("twice"), creation("twice")), [E.INVALID_REQUEST]),
    "create: bad name": (creating(creation("no good")), [E.INVALID_TOPIC_EXCEPTION]),
    "create: no name": (creating(creation("")), [E.INVALID_TOPIC_EXCEPTION]),
    "create: dots": (creating(creation("..")), [E.INVALID_TOPIC_EXCEPTION]),
    "create: long name": (creating(creation("n" * 250)), [E.INVALID_TOPIC_EXCEPTION]),
    "create: collision": (creating(creation("col_x")), [E.INVALID_TOPIC_EXCEPTION]),
    "create: the metadata log": (creating(creation("__cluster_metadata")), [E.INVALID_REQUEST]),
    "create: no partitions": (creating(creation("p0", 0)), [E.INVALID_PARTITIONS]),
    "create: too many partitions": (creating(creation("p10001", 10_001)), [E.POLICY_VIOLATION]),
    "create: factor 0": (creating(creation("f0", 1, 0)), [E.INVALID_REPLICATION_FACTOR]),
    "create: counts and replicas": (
        creating(creation("both", 1, -1, assignments=[create_topics.CreatableReplicaAssignment(0, [1])])),
        [E.INVALID_REQUEST],
    ),
    "create: a gap": (creating(assigned((0, [1]), (2, [1]))), [E.INVALID_REPLICA_ASSIGNMENT]),
    "create: a replica twice": (creating(assigned((0, [1, 1]))), [E.INVALID_REPLICA_ASSIGNMENT]),
    "create: an unknown broker": (creating(assigned((0, [1, 9]))), [E.INVALID_REPLICA_ASSIGNMENT]),
    "create: unknown config": (creating(configured(no_such="1")), [E.INVALID_CONFIG]),
    "create: bad value": (creating(configured(retention_ms="soon")), [E.INVALID_CONFIG]),
    "create: null value": (creating(configured(retention_ms=None)), [E.INVALID_CONFIG]),
    "delete: unknown name": (deleting(("nowhere", NO_ID)), [E.UNKNOWN_TOPIC_OR_PARTITION]),
    "delete: unknown id": (deleting((None, b"\x07" * 16)), [E.UNKNOWN_TOPIC_ID]),
    "delete: name and id": (deleting(("there", b"\x07" * 16)), [E.INVALID_REQUEST]),
    "partitions: fewer": (growing("there", 2), [E.INVALID_PARTITIONS]),
    "partitions: the same": (growing("there", 3), [E.INVALID_PARTITIONS]),
    "partitions: unknown topic": (growing("nowhere", 3), [E.UNKNOWN_TOPIC_OR_PARTITION]),
    "partitions: replicas short": (growing("there", 5, [[1]]), [E.INVALID_REPLICA_ASSIGNMENT]),
    "partitions: an unknown broker": (growing("there", 4, [[9]]), [E.INVALID_REPLICA_ASSIGNMENT]),
    "alter: unknown topic": (changing(TOPIC, "nowhere", ("retention.ms", SET, "1")),
    [E.UNKNOWN_TOPIC_OR_PARTITION]),
    "alter: unknown config": (changing(TOPIC, "there", ("no.such", SET, "1")), [E.INVALID_CONFIG]),
    "alter: bad value": (changing(TOPIC, "there", ("segment.bytes", SET, "-5")), [E.INVALID_CONFIG]),
    "alter: null": (changing(TOPIC, "there", ("retention.ms", SET, None)), [E.INVALID_REQUEST]),
    "alter: append to a number": (changing(TOPIC, "there", ("retention.ms", APPEND, "1")),
    [E.INVALID_CONFIG]),
    "alter: one key twice": (
        changing(TOPIC, "there", ("retention.ms", SET, "1"), ("retention.ms", SET, "2")),
        [E.INVALID_REQUEST],
    ),
    "alter: unknown kind": (changing(99, "there", ("a", SET, "1")), [E.INVALID_REQUEST]),
    "alter: broker's fixed key": (changing(BROKER, "1", ("node.id", SET, "4")), [E.INVALID_REQUEST]),
    "alter: broker's unknown key": (changing(BROKER, "1", ("no.such", SET, "4")), [E.INVALID_CONFIG]),
    "alter: broker's bad value": (changing(BROKER, "1", ("log.retention.ms", SET, "soon")),
    [E.INVALID_REQUEST]),
    "alter: broker by name": (changing(BROKER, "one", ("log.retention.ms", SET, "1")), [E.INVALID_REQUEST]),
    "alter: no group": (changing(GROUP, "", ("consumer.session.timeout.ms", SET, "1")), [E.INVALID_REQUEST]),
    "alter: group's unknown key": (changing(GROUP, "g", ("no.such", SET, "1")), [E.INVALID_CONFIG]),
    "replace: unknown topic": (replacing(TOPIC, "nowhere", ("retention.ms", "1")),
    [E.UNKNOWN_TOPIC_OR_PARTITION]),
    "replace: bad value": (replacing(TOPIC, "there", ("retention.ms", "soon")), [E.INVALID_CONFIG]),
    "replace: broker's fixed key": (replacing(BROKER, "1", ("node.id", "4")), [E.INVALID_REQUEST]),
    "describe: unknown topic": (describing(TOPIC, "nowhere"), [E.UNKNOWN_TOPIC_OR_PARTITION]),
    "describe: bad name": (describing(TOPIC, "no good"), [E.INVALID_TOPIC_EXCEPTION]),
    "describe: another broker": (describing(BROKER, "9"), [E.INVALID_REQUEST]),
    "describe: another broker's loggers": (describing(BROKER_LOGGER, "9"), [E.INVALID_REQUEST]),
    "describe: no group": (describing(GROUP, ""), [E.INVALID_REQUEST]),
    "describe: unknown kind": (describing(99, "there"), [E.INVALID_REQUEST]),
    "resources: unknown kind": (
        (74, 1, list_config_resources.ListConfigResourcesRequest(resource_types=[99])),
        [E.UNSUPPORTED_VERSION],
    ),
    "move: unknown topic": (moving("nowhere", 0, [1]), [E.UNKNOWN_TOPIC_OR_PARTITION]),
    "move: an unknown broker": (moving("there", 0, [9]), [E.INVALID_REPLICA_ASSIGNMENT]),
    "move: nothing to cancel": (moving("there", 0, None), [E.NO_REASSIGNMENT_IN_PROGRESS]),
    "elect: not needed": (electing(0, "there", 0), [E.ELECTION_NOT_NEEDED]),
    "elect: unknown partition": (electing(0, "there", 9), [E.UNKNOWN_TOPIC_OR_PARTITION]),
    "elect: unknown kind": (electing(7, "there", 0), [E.INVALID_REQUEST] * 2),
    "coordinator: of a transaction": (finding(1, "t"), [E.UNSUPPORTED_VERSION]),
    "coordinator: unknown kind": (finding(9, "t"), [E.INVALID_REQUEST]),
    "pages: a cursor elsewhere": (paging(["there"], ("nowhere", 0)), [E.INVALID_REQUEST]),
    "pages: a cursor below 0": (paging(["there"], ("there", -1)), [E.INVALID_REQUEST]),
    "cluster: the controllers": ((60, 1, describe_cluster.DescribeClusterRequest(False, 2)),
    [E.MISMATCHED_ENDPOINT_TYPE]),
    "cluster: unknown kind": ((60, 1, describe_cluster.DescribeClusterRequest(False, 9)),
    [E.UNSUPPORTED_ENDPOINT_TYPE]),
    "unregister: nobody": ((64, 0, unregister_broker.UnregisterBrokerRequest(9)),
    [E.BROKER_ID_NOT_REGISTERED]),
    "unregister: the only one, running": ((64, 0, unregister_broker.UnregisterBrokerRequest(1)),
    [E.INVALID_REQUEST]),
    "features: unknown": (
        (
            57,
            2,
            update_features.UpdateFeaturesRequest(
                feature_updates=[update_features.FeatureUpdateKey("no.such", 1)]
            ),
        ),
        [E.INVALID_UPDATE_VERSION],
    ),
    "scram: one user twice": (
        (
            50,
            0,
            describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
                users=[describe_user_scram_credentials.UserName("u")] * 2
            ),
        ),
        [E.DUPLICATE_RESOURCE],
    ),
    "quotas: a change": (
        (
            49,
            1,
            alter_client_quotas.AlterClientQuotasRequest(
                entries=[alter_client_quotas.AlterClientQuotasRequestEntryData()]
            ),
        ),
        [E.UNSUPPORTED_VERSION],
    ),
    "tokens: one more": ((38, 3, create_delegation_token.CreateDelegationTokenRequest()),
    [E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED]),
    "acls: a question": ((29, 3, describe_acls.DescribeAclsRequest(1, None, 1, None, None, 1, 1)),
    [E.SECURITY_DISABLED]),
    "transactions: a bad pattern": (
        (66, 2, list_transactions.ListTransactionsRequest(transactional_id_pattern="(")),
        [E.INVALID_REGULAR_EXPRESSION],
    ),
    "metadata: unknown id": (
        (3, 12, metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(topic_id=b"\x07" * 16,
        name=None)])),
        [E.UNKNOWN_TOPIC_ID],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_input_gets_kafkas_code(wire: Wire, name: str) -> None:
    """Each refusal says why, in the place where a client of that API looks; the connection goes on."""
    (key, version, request), codes = WRONG[name]
    assert codes_of(wire.ask(key, version, request)) == codes


# Configuration


def synonyms(found: Any) -> list[tuple[str, str, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in found.synonyms]


def configs_of(wire: Wire, kind: int, name: str, *keys: str) -> dict[str, Any]:
    resource = describe_configs.DescribeConfigsResource(kind, name, list(keys) or None)
    request = describe_configs.DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = wire.ask(32, 4, request).results
    assert not result.error_code, result.error_message
    return {found.name: found for found in result.configs}


def change(wire: Wire, kind: int, name: str, *changes: tuple[str, int, str | None]) -> None:
    key, version, request = changing(kind, name, *changes)
    response = wire.ask(key, version, request)
    assert not codes_of(response), response


def test_sources_and_synonyms(wire: Wire) -> None:
    """A topic's value comes from the topic, the broker, all brokers, the properties file or Kafka's default,
    in this order; each place is named by the key that was written there, in its own unit."""
    change(wire, TOPIC, "there", ("retention.ms", SET, "1000"))
    change(wire, BROKER, "1", ("log.retention.ms", SET, "2000"))
    change(wire, BROKER, "", ("log.retention.ms", SET, "3000"))
    try:
        found = configs_of(wire, TOPIC, "there", "retention.ms")["retention.ms"]
        assert (found.value, found.config_source, found.read_only, found.is_sensitive) == (
            "1000",
            1,
            False,
            False,
        )
        listing = [
            ("retention.ms", "1000", 1),
            ("log.retention.ms", "2000", 2),
            ("log.retention.ms", "3000", 3),
            ("log.retention.hours", "24", 4),
            ("log.retention.hours", "168", 5),
        ]
        assert synonyms(found) == listing
        change(wire, TOPIC, "there", ("retention.ms", DELETE, None))
        found = configs_of(wire, TOPIC, "there", "retention.ms")["retention.ms"]
        assert (found.value, found.config_source, synonyms(found)) == ("2000", 2, listing[1:])
        default = configs_of(wire, BROKER, "")
        assert {name: (one.value, one.config_source) for name, one in default.items()} == {
            "log.retention.ms": ("3000", 3),
            "min.insync.replicas": ("1", 3),  # of itself, as in Kafka
        }
    finally:
        change(wire, BROKER, "1", ("log.retention.ms", DELETE, None))
        change(wire, BROKER, "", ("log.retention.ms", DELETE, None))
    found = configs_of(wire, TOPIC, "there", "retention.ms")["retention.ms"]
    assert (found.value, found.config_source, synonyms(found)) == ("86400000", 5, []), (
        "as Kafka says, unless log.retention.ms is set"
    )


def test_what_a_broker_shows(wire: Wire) -> None:
    """Every key of a Kafka broker, with its type; what was given is from the file, the rest are defaults;
    what cannot change at once is read-only; secrets are not shown."""
    found = configs_of(wire, BROKER, "1")
    assert {
        "node.id",
        "listeners",
        "log.dirs",
        "num.partitions",
        "auto.create.topics.enable",
        "offsets.topic.num.partitions",
    } <= set(found)
    assert (found["num.partitions"].value, found["num.partitions"].config_source) == ("2", 4)
    assert (found["message.max.bytes"].value, found["message.max.bytes"].config_source) == ("1048588", 5)
    assert found["message.max.bytes"].read_only is False
    assert found["node.id"].read_only is True
    assert {one.value for one in found.values() if one.is_sensitive} == {None}
    assert found["log.retention.hours"].config_type == 3


def test_lists_grow_and_shrink(theirs: AdminClient, wire: Wire) -> None:
    """APPEND and SUBTRACT work on what holds, for topics and for brokers; AlterConfigs replaces all that was
    set."""

    def alter(kind: ConfluentType, name: str, operation: AlterConfigOpType, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=operation)
        wait(theirs.incremental_alter_configs([ConfluentResource(kind, name, incremental_configs=[entry])]))

    def shown(kind: int, name: str, key: str) -> str:
        return str(configs_of(wire, kind, name, key)[key].value)

    topic, broker = ConfluentType.TOPIC, ConfluentType.BROKER
    alter(topic, "there", AlterConfigOpType.APPEND, "cleanup.policy", "compact")
    assert shown(TOPIC, "there", "cleanup.policy") == "delete,compact"
    alter(topic, "there", AlterConfigOpType.SUBTRACT, "cleanup.policy", "delete")
    assert shown(TOPIC, "there", "cleanup.policy") == "compact"
    alter(broker, "1", AlterConfigOpType.APPEND, "log.cleanup.policy", "compact")
    assert shown(BROKER, "1", "log.cleanup.policy") == "delete,compact"
    alter(broker, "1", AlterConfigOpType.DELETE, "log.cleanup.policy", "")
    key, version, request = replacing(TOPIC, "there", ("segment.ms", "60000"))
    assert not codes_of(wire.ask(key, version, request))
    assert shown(TOPIC, "there", "segment.ms") == "60000"
    assert shown(TOPIC, "there", "cleanup.policy") == "delete"
    change(wire, TOPIC, "there", ("segment.ms", DELETE, None))


def test_kafka_pythons_config_calls(admin: KafkaAdminClient) -> None:
    """It reads before it writes, and refuses what it does not find: topics, brokers, resets and the list of
    resources."""
    topic = ConfigResource(ConfigResourceType.TOPIC, "there", configs={"retention.bytes": "1000000"})
    assert admin.alter_configs([topic]) == {"topic": {"there": "OK"}}
    found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "there")])["topic"]["there"]
    assert {
        name: one["value"] for name, one in found.items() if one["config_source"] == "DYNAMIC_TOPIC_CONFIG"
    } == {"retention.bytes": "1000000"}
    admin.reset_configs(
        [ConfigResource(ConfigResourceType.TOPIC, "there", configs={"retention.bytes": None})]
    )
    found = admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")], config_filter="all")[
        "broker"
    ]["1"]
    assert found["num.partitions"]["config_source"] == "STATIC_BROKER_CONFIG"
    resources = admin.list_config_resources()
    assert resources["broker"] == ["1"]
    assert "there" in resources["topic"]


def produce(broker: LiveBroker, topic: str, value: bytes) -> str | None:
    """None, or the name of the error."""
    found: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0, "message.timeout.ms": 5000})
    producer.produce(topic, value, partition=0, on_delivery=lambda error, _: found.append(error))
    producer.flush(PATIENCE_S)
    return None if found[0] is None else str(found[0].name())


def test_a_changed_configuration_holds_at_once(broker: LiveBroker, wire: Wire) -> None:
    """The next batch meets it, though the partition is open: a topic's own value, then a broker's default."""
    assert produce(broker, "there", b"v" * 5000) is None
    change(wire, TOPIC, "there", ("max.message.bytes", SET, "1000"))
    assert produce(broker, "there", b"v" * 5000) == "MSG_SIZE_TOO_LARGE"
    change(wire, TOPIC, "there", ("max.message.bytes", DELETE, None))
    assert produce(broker, "there", b"v" * 5000) is None
    change(wire, BROKER, "1", ("message.max.bytes", SET, "1000"))
    assert produce(broker, "there", b"v" * 5000) == "MSG_SIZE_TOO_LARGE"
    change(wire, BROKER, "1", ("message.max.bytes", DELETE, None))
    assert produce(broker, "there", b"v" * 5000) is None
    change(wire, TOPIC, "there", ("message.timestamp.type", SET, "LogAppendTime"))
    producer = KafkaProducer(bootstrap_servers=broker.address)
    stamped_ms = time.time_ns() // 1_000_000 - 60_000
    placed = producer.send("there", b"v", timestamp_ms=stamped_ms, partition=0).get(10)
    producer.close()
    assert placed.timestamp > stamped_ms + 30_000
    change(wire, TOPIC, "there", ("message.timestamp.type", DELETE, None))


# Log directories


def log_dirs(wire: Wire, *asked: tuple[str, list[int]]) -> Any:
    topics = [describe_log_dirs.DescribableLogDirTopic(*one) for one in asked] or None
    (result,) = wire.ask(35, 4, describe_log_dirs.DescribeLogDirsRequest(topics=topics)).results
    return result


def sizes(result: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, one.partition_index): one.partition_size
        for topic in result.topics
        for one in topic.partitions
    }


def test_log_dirs_say_how_large_partitions_are(tmp_path: Path) -> None:
    """An open partition's size is the bytes of its batches; after a restart, still closed, its share of the
    committed objects, which is near; what was asked for and is not here is left out; the volume's room is
    told."""
    with LiveBroker(tmp_path, {"num.partitions": "2"}, wal="16MiB") as running:
        for _ in range(20):
            assert produce(running, "sized", b"v" * 10_000) is None
        with Wire(running.address) as wire:
            found = log_dirs(wire)
            assert found.log_dir == str(tmp_path / "data" / "metadata")
            assert 0 < found.usable_bytes <= found.total_bytes
            size = sizes(found)["sized", 0]
            assert 200_000 < size < 205_000
            assert sizes(found)["sized", 1] == 0
            assert sizes(log_dirs(wire, ("sized", [0, 0, 7]), ("nowhere", [0]))) == {("sized", 0): size}
        running.restart()
        with Wire(running.address) as wire:
            closed_size = sizes(log_dirs(wire))["sized", 0]
            assert abs(closed_size - size) < size / 10
            assert produce(running, "sized", b"v" * 10_000) is None
            assert sizes(log_dirs(wire))["sized", 0] > size


def test_a_partition_moves_to_its_own_directory_alone(
    broker: LiveBroker, admin: KafkaAdminClient, wire: Wire
) -> None:
    """The directory it is in is accepted; another is not found; a partition that is not there is unknown."""
    (shown,) = admin.describe_log_dirs()
    own = shown["log_dirs"][0]["log_dir"]
    here = TopicPartitionReplica("there", 0, 1)
    assert admin.alter_replica_log_dirs({here: own}) == {here: kafka_errors.NoError}
    assert admin.alter_replica_log_dirs({here: "/elsewhere"}) == {here: kafka_errors.LogDirNotFoundError}
    message = alter_replica_log_dirs
    topics = [message.AlterReplicaLogDirTopic("there", [9]), message.AlterReplicaLogDirTopic("nowhere", [0])]
    request = message.AlterReplicaLogDirsRequest(dirs=[message.AlterReplicaLogDir(own + "/", topics)])
    assert codes_of(wire.ask(34, 2, request)) == [E.UNKNOWN_TOPIC_OR_PARTITION] * 2


def test_who_changed_what_is_in_the_log(broker: LiveBroker, admin: KafkaAdminClient, wire: Wire) -> None:
    """By client id and address, of what was done: not of what was refused, or only validated."""
    before = len(broker.log_path.read_text())
    with Client(broker.address) as client:
        client.create("logged")
        client.produce("logged", [b"a", b"b"])
        client.delete_records("logged", 1)
        client.ask("CreateTopics", create_topics.CreateTopicsRequest([creation("there")], 1000))
        client.ask("CreateTopics", create_topics.CreateTopicsRequest([creation("only-tried")], 1000, True))
        change(wire, TOPIC, "logged", ("retention.ms", SET, "1000"), ("cleanup.policy", DELETE, None))
        client.delete("logged")
        client.ask(
            "Metadata",
            metadata.MetadataRequest([metadata.MetadataRequestTopic(name="made-by-asking")], True),
            9,
        )
    lines = [line for line in broker.log_path.read_text()[before:].splitlines() if "change_log" in line]
    told = [line.partition("change_log: ")[2] for line in lines]
    assert [re.sub(r" by client '[\w-]*' at 127\.0\.0\.1:\d+", "", line) for line in told] == [
        "topics created: logged",
        "records deleted: logged-0 below offset 1",
        "configurations changed: topic logged: retention.ms=1000 cleanup.policy deleted",
        "topics deleted: logged",
        "topics auto-created: made-by-asking",
    ]


def test_a_limit_of_connections_holds_for_the_next_one(broker: LiveBroker, wire: Wire) -> None:
    """Those that are there stay; taken back, others are let in again."""
    change(wire, BROKER, "1", ("max.connections.per.ip", SET, "1"))
    try:
        with Wire(broker.address) as refused, pytest.raises((EOFError, ConnectionError)):
            refused.ask(18, 4, ApiVersionsRequest("test", "1"))
    finally:
        change(wire, BROKER, "1", ("max.connections.per.ip", DELETE, None))
    with Wire(broker.address) as taken:
        assert taken.ask(18, 4, ApiVersionsRequest("test", "1")).error_code == 0


def test_a_broker_is_described_as_kafka_describes_one(wire: Wire) -> None:
    """In the order of names, which kafkajs stands on (default.replication.factor before num.partitions), with
    an error message that is empty, and the default behind what was given at the start. What is broker-wide
    under a name in larger units is no synonym of a topic's."""

    def described(kind: int, name: str) -> dict[str, Any]:
        resource = describe_configs.DescribeConfigsResource(kind, name, None)
        (result,) = wire.ask(32, 4, describe_configs.DescribeConfigsRequest([resource], True)).results
        assert (result.error_code, result.error_message) == (0, "")
        assert [one.name for one in result.configs] == sorted(one.name for one in result.configs)
        return {one.name: one for one in result.configs}

    found = described(4, "1")
    assert (found["broker.id"].value, found["controller.quorum.voters"].value) == ("1", "")
    assert synonyms(found["log.retention.hours"]) == [
        ("log.retention.hours", "24", 4),
        ("log.retention.hours", "168", 5),
    ]
    topic = described(2, "there")
    assert {
        name: synonyms(topic[name])
        for name in ("retention.ms", "segment.ms", "segment.jitter.ms", "flush.ms")
    } == {
        "retention.ms": [],
        "segment.ms": [],
        "segment.jitter.ms": [],
        "flush.ms": [],
    }
    assert synonyms(topic["segment.bytes"]) == [("log.segment.bytes", "1073741824", 5)]


# What is turned off, and what has nothing to do


def test_what_is_turned_off_says_so(admin: KafkaAdminClient, theirs: AdminClient) -> None:
    """Questions get an empty answer, writes Kafka's own refusal."""
    binding = AclBinding(
        ConfluentType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:u",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    assert list(wait(theirs.create_acls([binding])).values()) == [E.SECURITY_DISABLED]
    with pytest.raises(kafka_errors.SecurityDisabledError):
        admin.describe_acls(acl_filter())
    assert admin.describe_user_scram_credentials() == {}
    assert admin.list_transactions() == {1: []}
    assert admin.find_hanging_transactions() == []


def acl_filter() -> Any:
    from kafka.admin import (
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        ResourcePatternFilter,
    )
    from kafka.admin import ResourceType as AclResourceType

    pattern = ResourcePatternFilter(AclResourceType.ANY, None, ACLResourcePatternType.ANY)
    return ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern)


def test_reassignments_and_elections_have_nothing_to_do(admin: KafkaAdminClient) -> None:
    """The present replicas are accepted as a target and nothing is under way; every leader is the preferred
    one."""
    there = TopicPartition("there", 0)
    assert admin.alter_partition_reassignments({there: [1]}) == {there: None}
    assert admin.list_partition_reassignments() == {}
    admin.elect_leaders(0, {"there": [0]})
    admin.elect_leaders(0)


def test_producers_are_described(broker: LiveBroker, admin: KafkaAdminClient) -> None:
    """An idempotent producer is remembered with its last sequence by the partition it wrote to."""
    admin.create_topics({"numbered": {"num_partitions": 1, "replication_factor": 1}})
    producer = KafkaProducer(bootstrap_servers=broker.address, enable_idempotence=True)
    for _ in range(3):
        producer.send("numbered", b"v").get(10)
    producer.close()
    numbered = TopicPartition("numbered", 0)
    (state,) = admin.describe_producers([numbered])[numbered].active_producers
    assert (state.last_sequence, state.producer_epoch) == (2, 0)


# Deleted topics


def object_files(broker: LiveBroker) -> dict[Path, int]:
    """Objects and their sizes. The broker removes some meanwhile, and folders with them: who is gone is not
    there."""
    found: dict[Path, int] = {}
    for folder, _, names in os.walk(broker.folder / "data" / "objects"):
        for path in (Path(folder, name) for name in names):
            if path.name != "millrace-cluster" and ".new" not in str(path):
                with contextlib.suppress(FileNotFoundError):
                    found[path] = path.stat().st_size
    return found


def test_objects_go_with_their_topic(broker: LiveBroker, admin: KafkaAdminClient) -> None:
    """What a deleted topic had in the store is gone from it soon; what others have there stays."""

    def stored_bytes() -> int:
        return sum(object_files(broker).values())

    def is_uploaded() -> bool:
        return broker.metrics()["millrace_wal_used_bytes"] == 0

    until(is_uploaded)  # objects that the topic shares with others would stay with them
    before = stored_bytes()
    admin.create_topics({"doomed": {"num_partitions": 1, "replication_factor": 1}})
    for _ in range(5):
        assert produce(broker, "doomed", b"d" * 100_000) is None
    until(is_uploaded)
    assert stored_bytes() > before + 500_000
    admin.delete_topics(["doomed"])
    until(lambda: stored_bytes() < before + 100_000)
    assert stored_bytes() >= before
