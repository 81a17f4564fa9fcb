"""Brokers that were drained and run on: who is given partitions instead, and when they are let in again."""

from __future__ import annotations

import pytest

from millrace.kraft.commands.takers import CORDONED, is_drained, takers_of
from millrace.kraft.tables.brokers import UNASSIGNED_DIRECTORY
from millrace.kraft.tables.configs import ResourceType
from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from millrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace.protocol.metadata_records import ConfigRecord
from tests.kraft.commands.test_leaders import NONE, Cluster
from tests.kraft.tables.build import create, topic
from tests.kraft.test_replay import snapshot_of


def drain(cluster: Cluster, broker_id: int | str, value: str | None = "*") -> None:
    """As `millrace cluster drain` does; None lets it in again, "" as a broker's id means all."""
    change = AlterableConfig(CORDONED, 0 if value is not None else 1, value)
    resource = AlterConfigsResource(ResourceType.BROKER, str(broker_id), [change])
    (answer,) = cluster.do(IncrementalAlterConfigsRequest([resource])).responses
    assert answer.error_code == 0, answer


def leaders(cluster: Cluster, name: str) -> list[int]:
    found = cluster.image.topics.by_name(name)
    assert found is not None
    return [state.leader for state in found.partitions]


def test_new_partitions_go_past_a_drained_broker() -> None:
    """Those of new topics and those that a topic gets more; a follower's snapshot says the same. Once it is
    let in it takes its turn."""
    cluster = Cluster()
    drain(cluster, 2)
    create(cluster, topic("new", partitions=6))
    assert sorted(leaders(cluster, "new")) == [1, 1, 1, 3, 3, 3]
    cluster.do(CreatePartitionsRequest([CreatePartitionsTopic("new", 10, None)]))
    assert len(leaders(cluster, "new")) == 10
    assert 2 not in leaders(cluster, "new")
    assert is_drained(snapshot_of(cluster.image), 2)
    drain(cluster, 2, None)
    create(cluster, topic("later", partitions=6))
    assert sorted(leaders(cluster, "later")) == [1, 1, 2, 2, 3, 3]


def test_a_drained_broker_stays_so_over_its_restart() -> None:
    """It registers anew, in a new epoch."""
    cluster = Cluster()
    drain(cluster, 2)
    cluster.register(2, incarnation=9)
    assert [broker.broker_id for broker in takers_of(cluster.image)] == [1, 3]


def test_partitions_of_one_that_is_gone_go_past_a_drained_broker() -> None:
    cluster = Cluster()
    drain(cluster, 2)
    before = cluster.led()
    cluster.close(3)
    cluster.fence(3)
    assert cluster.settle() == 2
    assert cluster.led() == {1: sorted([*before[1], *before[3]]), 2: before[2]}


def test_what_a_drained_broker_leads_still_stays_until_it_is_moved() -> None:
    """Nothing is taken from it by the way, and whoever names it is obeyed."""
    cluster = Cluster()
    before = cluster.led()
    drain(cluster, 2)
    assert cluster.settle() == 0
    assert cluster.led() == before
    index = before[1][0]
    asked = [ReassignableTopic("t", [ReassignablePartition(index, [2])])]
    (answer,) = cluster.do(AlterPartitionReassignmentsRequest(topics=asked)).responses[0].partitions
    assert answer.error_code == NONE
    assert cluster.leader(index) == 2
    create(cluster, topic("named", assignments={0: [2]}))
    assert leaders(cluster, "named") == [2]


def test_where_all_are_drained_topics_are_made_all_the_same() -> None:
    """Of the broker that is not, since it is fenced, nobody thinks."""
    cluster = Cluster()
    cluster.fence(3)
    for broker_id in (1, 2):
        drain(cluster, broker_id)
    create(cluster, topic("new", partitions=4))
    assert sorted(leaders(cluster, "new")) == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("own", "of_all", "expected"),
    [
        (None, None, False),
        ("*", None, True),
        ("/data/one", None, True),
        ("", None, False),
        (" ", None, False),
        (None, "*", True),
        ("", "*", False),
    ],
)
def test_its_own_value_counts_before_that_of_all(own: str | None, of_all: str | None, expected: bool) -> None:
    cluster = Cluster()
    cluster.commit(
        [
            ConfigRecord(ResourceType.BROKER, name, CORDONED, value)
            for name, value in (("2", own), ("", of_all))
            if value is not None
        ]
    )
    assert is_drained(cluster.image, 2) is expected


@pytest.mark.parametrize(
    ("own", "of_all", "expected"),
    [(None, None, True), ("", None, False), (None, "", False), ("*", None, True)],
)
def test_what_stands_in_a_brokers_file_counts_where_nothing_is_set(
    own: str | None, of_all: str | None, expected: bool
) -> None:
    """The broker says it with a heartbeat. Its next start says it anew, or says nothing any more."""
    cluster = Cluster()
    beat = BrokerHeartbeatRequest(2, cluster.epochs[2], cluster.image.offset)
    beat.cordoned_log_dirs = [UNASSIGNED_DIRECTORY]
    cluster.do(beat)
    for broker_id, value in ((2, own), ("", of_all)):
        if value is not None:
            drain(cluster, broker_id, value)
    assert is_drained(cluster.image, 2) is expected
    assert is_drained(snapshot_of(cluster.image), 2) is expected
    if own is None and of_all is None:
        create(cluster, topic("new", partitions=6))
        assert sorted(leaders(cluster, "new")) == [1, 1, 1, 3, 3, 3]
        cluster.register(2, incarnation=9)
        assert not is_drained(cluster.image, 2)
