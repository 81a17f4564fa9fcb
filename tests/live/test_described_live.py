"""What describing APIs say beside their codes, as Apache Kafka 4.3.1 says it (`make compare` holds whole
answers against it)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millrace.protocol.messages import (
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_producers,
    describe_quorum,
    describe_user_scram_credentials,
    elect_leaders,
    find_coordinator,
    incremental_alter_configs,
    metadata,
)
from tests.live import LiveBroker
from tests.live.client import Client

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
DYNAMIC_BROKERS, STATIC, DEFAULT, METRICS_SOURCE, GROUP_SOURCE = 3, 4, 5, 7, 8


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    settings = {"group.consumer.heartbeat.interval.ms": "6000", "min.insync.replicas": "2"}
    folder = tmp_path_factory.mktemp("described")
    with LiveBroker(folder, settings, wal="16MiB") as broker, Client(broker.address) as asking:
        asking.create("there", 2)
        yield asking


def described(client: Client, kind: int, name: str) -> Any:
    resource = describe_configs.DescribeConfigsResource(kind, name, None)
    return client.ask("DescribeConfigs", describe_configs.DescribeConfigsRequest([resource], True)).results[0]


def stated(client: Client, kind: int, name: str, key: str) -> tuple[str, int, list[tuple[str, str, int]]]:
    """Value, source, synonyms."""
    (found,) = [one for one in described(client, kind, name).configs if one.name == key]
    return found.value, found.config_source, [(one.name, one.value, one.source) for one in found.synonyms]


def test_min_insync_replicas_is_set_for_all_brokers(client: Client) -> None:
    """As in a cluster of Kafka's with eligible leader replicas: the value of the start, until another is set,
    and again when it is taken back."""
    key = "min.insync.replicas"
    start = [(key, "2", DYNAMIC_BROKERS), (key, "2", STATIC), (key, "1", DEFAULT)]
    for kind, name in ((TOPIC, "there"), (BROKER, "1")):
        assert stated(client, kind, name, key) == ("2", DYNAMIC_BROKERS, start)
    assert stated(client, BROKER, "", key) == ("2", DYNAMIC_BROKERS, [(key, "2", DYNAMIC_BROKERS)])
    for operation, value, shown in ((0, "3", "3"), (1, None, "2")):
        change = incremental_alter_configs
        resource = change.AlterConfigsResource(BROKER, "", [change.AlterableConfig(key, operation, value)])
        answer = client.ask("IncrementalAlterConfigs", change.IncrementalAlterConfigsRequest([resource]))
        assert answer.responses[0].error_code == 0
        assert stated(client, TOPIC, "there", key) == (
            shown,
            DYNAMIC_BROKERS,
            [(key, shown, DYNAMIC_BROKERS), *start[1:]],
        )


def test_groups_and_client_metrics_show_every_key(client: Client) -> None:
    """With what is set before the broker's value and Kafka's default, also of a group that nobody has."""
    change = incremental_alter_configs
    resources = [
        change.AlterConfigsResource(
            GROUP, "g", [change.AlterableConfig("consumer.heartbeat.interval.ms", 0, "7000")]
        ),
        change.AlterConfigsResource(METRICS, "m", [change.AlterableConfig("interval.ms", 0, "1000")]),
    ]
    answer = client.ask("IncrementalAlterConfigs", change.IncrementalAlterConfigsRequest(resources))
    assert [one.error_code for one in answer.responses] == [0, 0]
    key, broad = "consumer.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"
    start = [(broad, "6000", STATIC), (broad, "5000", DEFAULT)]
    assert stated(client, GROUP, "g", key) == ("7000", GROUP_SOURCE, [(key, "7000", GROUP_SOURCE), *start])
    assert stated(client, GROUP, "nobody", key) == ("6000", STATIC, start)
    assert stated(client, GROUP, "g", "share.auto.offset.reset")[:2] == ("latest", DEFAULT)
    assert len(described(client, GROUP, "nobody").configs) == 17
    assert stated(client, METRICS, "m", "interval.ms") == (
        "1000",
        METRICS_SOURCE,
        [("interval.ms", "1000", METRICS_SOURCE)],
    )
    assert stated(client, METRICS, "none", "interval.ms") == ("300000", DEFAULT, [])
    assert [one.name for one in described(client, METRICS, "none").configs] == [
        "interval.ms",
        "match",
        "metrics",
    ]


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (BROKER, "7", "Unexpected broker id, expected 1 or empty string, but received 7"),
        (BROKER, "x", "Broker id must be an integer, but it is: x"),
        (LOGGER, "", "Broker id must not be empty"),
        (LOGGER, "7", "Unexpected broker id, expected 1 but received 7"),
        (LOGGER, "x", "Broker id must be an integer, but it is: x"),
        (GROUP, "", "Group name must not be empty"),
        (METRICS, "", "Client metrics subscription name must not be empty"),
    ],
)
def test_a_resource_that_cannot_be(client: Client, kind: int, name: str, message: str) -> None:
    """Kafka's words."""
    found = described(client, kind, name)
    assert (found.error_code, found.error_message) == (42, message)


def test_a_name_that_is_asked_for_twice_is_described_once(client: Client) -> None:
    """Those that are there, and those that are not."""
    topics = [metadata.MetadataRequestTopic(name=name) for name in ("there", "gone", "there", "gone")]
    answer = client.ask("Metadata", metadata.MetadataRequest(topics, False), 12)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("there", 0), ("gone", 3)]


def test_no_error_has_an_empty_message(client: Client) -> None:
    """Where Kafka says nothing it says so in an empty text, and not in none; FindCoordinator's old versions
    say NONE."""
    quotas = client.ask("DescribeClientQuotas", describe_client_quotas.DescribeClientQuotasRequest())
    scram = describe_user_scram_credentials.DescribeUserScramCredentialsRequest(None)
    asked = describe_quorum.DescribeQuorumRequestTopicData(
        "__cluster_metadata", [describe_quorum.DescribeQuorumRequestPartitionData(0)]
    )
    quorum = client.ask("DescribeQuorum", describe_quorum.DescribeQuorumRequest([asked]))
    assert (quotas.error_message, client.ask("DescribeUserScramCredentials", scram).error_message) == ("", "")
    assert (quorum.error_message, quorum.topics[0].partitions[0].error_message) == ("", "")
    find = find_coordinator.FindCoordinatorRequest
    assert client.ask("FindCoordinator", find(coordinator_keys=["g"])).coordinators[0].error_message == ""
    assert client.ask("FindCoordinator", find("g"), 3).error_message == "NONE"


def test_what_is_not_there_is_named(client: Client) -> None:
    """A topic, or one of its partitions; an endpoint of a type that is not this listener's."""
    topics = [elect_leaders.TopicPartitions("there", [9]), elect_leaders.TopicPartitions("gone", [0])]
    results = client.ask(
        "ElectLeaders", elect_leaders.ElectLeadersRequest(0, topics)
    ).replica_election_results
    assert [one.partition_result[0].error_message for one in results] == [
        "No such partition as there-9",
        "No such topic as gone",
    ]
    asked = [describe_producers.TopicRequest("there", [9]), describe_producers.TopicRequest("gone", [0])]
    answers = client.ask("DescribeProducers", describe_producers.DescribeProducersRequest(asked)).topics
    assert [one.partitions[0].error_message for one in answers] == [
        None,
        "This server does not host this topic-partition.",
    ]
    said = [
        client.ask("DescribeCluster", describe_cluster.DescribeClusterRequest(False, kind)).error_message
        for kind in (2, 3)
    ]
    assert said == [
        "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        "Unsupported endpoint type 3",
    ]
