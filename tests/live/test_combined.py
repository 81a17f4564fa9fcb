"""Nodes that are broker and controller in one, as real processes: who goes takes both roles with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.kraft.commands.configs import Operation
from millrace.kraft.tables.configs import ResourceType
from millrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.live.client import Client
from tests.live.cluster import LiveCombined, logged
from tests.live.test_brokers import PARTITIONS, TOPIC, leaders
from tests.live.test_controllers import QUICK
from tests.live.test_failover import check_all, moved_from, send, values
from tests.live.test_metrics_page import CLUSTER_ONLY, shown
from tests.metrics_docs import metric_rows
from tests.patience import until


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCombined]:
    with LiveCombined(tmp_path, 3, QUICK) as started:
        with Client(started.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        yield started


def test_each_leads_its_share_and_one_does_the_duties(cluster: LiveCombined) -> None:
    send(cluster, values(0, 120))
    assert sorted(leaders(cluster.brokers[1]).values()) == sorted([1, 2, 3] * 2)
    leader = cluster.leader()
    duties = {node_id: node.metrics()["millrace_quorum_duties"] for node_id, node in cluster.brokers.items()}
    assert duties == {node_id: float(node_id == leader) for node_id in cluster.brokers}
    of_clusters = {row.name: row for row in metric_rows() if row.name.startswith(CLUSTER_ONLY)}
    for node in cluster.brokers.values():
        page = shown(node)
        assert {name: row for name, row in page.items() if name.startswith(CLUSTER_ONLY)} == of_clusters
        assert {*page} <= {row.name for row in metric_rows()}
    check_all(cluster, values(0, 120))


@pytest.mark.parametrize("is_active", [True, False])
def test_one_that_is_killed_is_recovered_and_comes_back(cluster: LiveCombined, is_active: bool) -> None:
    """The active controller, or another."""
    send(cluster, values(0, 300))
    leader = cluster.leader()
    victim = leader if is_active else next(one for one in cluster.brokers if one != leader)
    node = cluster.brokers.pop(victim)
    node.kill()
    cluster.brokers[victim] = node
    until(lambda: moved_from(cluster, victim), "its partitions are not led by others")
    del cluster.brokers[victim]
    send(cluster, values(300, 300))
    check_all(cluster, values(0, 600))
    cluster.brokers[victim] = node.restart()
    send(cluster, values(600, 60))
    check_all(cluster, values(0, 660))


def test_loggers_are_the_same_ones_at_both_listeners(cluster: LiveCombined) -> None:
    """What one set stays over log.level, which is set by way of the other."""
    controller = cluster.brokers[1]._overrides["listeners"].rpartition("//")[2]

    def change(address: str, kind: int, name: str, value: str | None) -> None:
        config = AlterableConfig(name, Operation.DELETE if value is None else Operation.SET, value)
        request = IncrementalAlterConfigsRequest([AlterConfigsResource(kind, "1", [config])])
        with Client(address) as client:
            assert client.ask("IncrementalAlterConfigs", request).responses[0].error_code == 0

    def levels() -> list[str | None]:
        asked = DescribeConfigsResource(ResourceType.BROKER_LOGGER, "1", ["millrace.kraft", "millrace.wal"])
        with Client(controller) as client:
            answer = client.ask("DescribeConfigs", DescribeConfigsRequest([asked]))
        return [one.value for one in answer.results[0].configs]

    change(controller, ResourceType.BROKER_LOGGER, "millrace.kraft", "ERROR")
    change(cluster.addresses[0], ResourceType.BROKER, "log.level", "INFO,wal=WARN,kraft=DEBUG")
    until(lambda: levels() == ["ERROR", "WARN"], "log.level is followed where nothing else was set")
    change(cluster.addresses[0], ResourceType.BROKER_LOGGER, "millrace.kraft", None)
    assert levels() == ["DEBUG", "WARN"]


def test_one_that_is_stopped_hands_over_both_roles(cluster: LiveCombined) -> None:
    send(cluster, values(0, 120))
    leader = cluster.leader()
    assert cluster.brokers[leader].stop() == 0
    assert moved_from(cluster, leader), "moved before its end"
    ended = cluster.brokers.pop(leader)
    send(cluster, values(120, 120))
    check_all(cluster, values(0, 240))
    for node in cluster.brokers.values():
        assert not logged(node, "is to recover")
    cluster.brokers[leader] = ended.start()
    check_all(cluster, values(0, 240))


def test_all_that_are_stopped_at_once_end_in_order(cluster: LiveCombined) -> None:
    """And what they had is there when they are started again, all at once."""
    send(cluster, values(0, 120))
    for node in cluster.brokers.values():
        os.kill(node.pid, signal.SIGTERM)
    assert [node.wait_end() for node in cluster.brokers.values()] == [0, 0, 0]
    cluster.begin()
    send(cluster, values(120, 120))
    check_all(cluster, values(0, 240))


def test_all_that_are_killed_at_once_come_back(cluster: LiveCombined) -> None:
    send(cluster, values(0, 120))
    for node in cluster.brokers.values():
        node.kill()
    cluster.begin()
    send(cluster, values(120, 120))
    check_all(cluster, values(0, 240))
