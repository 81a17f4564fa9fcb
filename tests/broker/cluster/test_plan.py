"""The nodes of a cluster on one machine, as they are planned."""

from __future__ import annotations

import pytest

from millrace.broker.cluster.plan import (
    FENCINGS,
    ClusterFile,
    NodePlan,
    decode_cluster,
    new_cluster,
    plan_nodes,
)
from millrace.broker.config import load
from millrace.broker.settings.source import gather

CLUSTER = ClusterFile("bWlsbHJhY2UtdGVzdC0wMQ", 3, 9092)


def plans(count: int = 3, cluster: ClusterFile = CLUSTER, **given: str) -> list[NodePlan]:
    return plan_nodes(cluster, count, "/data", 8 << 30, given, "claim")


def test_three_nodes_are_voters_and_brokers() -> None:
    """Their settings are taken by `serve`, and no two share an address or a folder."""
    found = plans()
    taken = set()
    for plan in found:
        given, mistakes = gather([f"{key}={value}" for key, value in plan.settings.items()], {}, None, "")
        assert not mistakes
        settings = load(given, data_dir=plan.folder, machine_bytes=8 << 30).settings
        assert settings.quorum.voters == {
            1: ("127.0.0.1", 9192),
            2: ("127.0.0.1", 9193),
            3: ("127.0.0.1", 9194),
        }
        assert not settings.is_alone
        assert settings.node_id == plan.node_id
        ports = [one.port for one in (*settings.listeners.clients, *settings.listeners.controllers)]
        assert settings.listeners.admin == plan.admin
        assert ports[0] == plan.clients[1]
        taken |= {*ports, plan.admin[1], plan.folder}
        assert settings.memory.total_bytes == (8 << 30) // 4 // 3
    assert len(taken) == 3 * 4


def test_nodes_beyond_the_voters_are_brokers_alone() -> None:
    found = plans(5)
    assert [plan.roles for plan in found] == ["broker,controller"] * 3 + ["broker"] * 2
    assert "CONTROLLER" not in found[4].settings["listeners"]
    assert new_cluster("x", 4, 1).voter_count == 3
    assert new_cluster("x", 7, 1).voter_count == 5


def test_settings_of_all_nodes() -> None:
    given = {"s3.data.buckets": "0@s3://lake", "num.partitions": "6", "s3.wal.capacity": "64MiB"}
    for plan in plans(**given):
        assert {key: plan.settings[key] for key in given} == given


@pytest.mark.parametrize("fencing", FENCINGS)
def test_logs_lie_where_they_would_without_a_plan(fencing: str) -> None:
    """So that those of a cluster of before are found; and each is fenced as was said."""
    buckets = {"s3.data.buckets": "0@s3://lake"}
    for plan in plan_nodes(CLUSTER, 3, "/my data? 7%", 8 << 30, buckets, fencing):
        found = []
        for is_planned in (True, False):
            kept = {key: text for key, text in plan.settings.items() if is_planned or key != "s3.wal.path"}
            given, _ = gather([f"{key}={value}" for key, value in kept.items()], {}, None, "")
            found.append(load(given, data_dir=plan.folder, machine_bytes=8 << 30).settings)
        assert found[0].wal.target == found[1].wal.target
        assert found[0].wal_settings.fencing == fencing
        assert found[0].wal_settings.capacity_bytes == found[1].wal_settings.capacity_bytes


def test_logs_in_a_bucket() -> None:
    """Each node has its own there, under its id."""
    given = {"s3.wal.path": "0@s3://logs?region=eu-central-1"}
    for plan in plans(**given):
        assert plan.settings["s3.wal.path"] == given["s3.wal.path"]
        assert "s3.wal.capacity" not in plan.settings


@pytest.mark.parametrize(
    ("count", "port", "given", "said"),
    [
        (3, 9092, {"node.id": "7"}, "node.id follows from the plan"),
        (3, 9092, {"listeners": "PLAINTEXT://:1"}, "listeners follows"),
        (3, 9092, {"s3.wal.path": "0@file:///dev/nvme1n1"}, "logs of objects alone"),
        (3, 9092, {"s3.wal.path": "nowhere"}, "s3.wal.path: "),
        (3, 65_400, {}, "leaves no room"),
        (3, 0, {}, "port 0 is none that others follow from"),
        (3, -5, {}, "port -5 is none"),
    ],
)
def test_what_cannot_be_planned(count: int, port: int, given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan_nodes(ClusterFile("x", 3, port), count, "/data", 1 << 30, given, "lock")
    with pytest.raises(ValueError, match="5 voters: start as many"):
        plan_nodes(ClusterFile("x", 5, 9092), 3, "/data", 1 << 30, {}, "lock")


def test_the_file_of_a_cluster() -> None:
    assert decode_cluster(CLUSTER.encode()) == CLUSTER


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", '{"cluster_id": "x", "voters": 0, "port": 1}', '{"a"'])
def test_a_file_that_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        decode_cluster(text)
