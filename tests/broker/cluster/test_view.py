"""What `millrace cluster` makes of the answers: who leads, what waits, and for whom."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from millrace.broker.cli.cluster import status_lines
from millrace.broker.cluster import view as views
from millrace.broker.cluster.moves import spread_moves
from millrace.broker.cluster.view import ClusterView, view_of, when_serving
from millrace.protocol.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from millrace.protocol.messages.describe_quorum import DescribeQuorumResponsePartitionData
from millrace.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def a_view(*partitions: MetadataResponsePartition) -> ClusterView:
    """Brokers 1 to 3, the third gone, of which nobody leads the quorum."""
    brokers = [DescribeClusterBroker(one, f"host{one}", 9092, None, one == 3) for one in (1, 2, 3)]
    topic = MetadataResponseTopic(0, "t", partitions=list(partitions))
    nobody = DescribeQuorumResponsePartitionData(leader_id=-1, leader_epoch=-1, high_watermark=-1)
    return view_of(DescribeClusterResponse(brokers=brokers), MetadataResponse(topics=[topic]), nobody)


def partition(index: int, leader: int, replicas: list[int], offline: list[int]) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        0, index, leader, replica_nodes=replicas, isr_nodes=[leader], offline_replicas=offline
    )


def test_who_gives_no_answer_is_given_nothing() -> None:
    """Nobody but the broker says whether it is drained; what it leads stays, and is counted with nobody's."""
    view = a_view(*(partition(index, 1 + index % 2, [1], []) for index in range(4)))
    assert view.takers == view.answering == [1, 2]
    view = view.with_drained([1], [2])
    assert (view.drained, view.silent, view.answering, view.takers) == ([1], [2], [1], [1])
    rows = [row for row in status_lines(view) if "serves" in row]
    assert [row.split("serves")[1].split("  ")[0] for row in rows] == [", drained", ", gives no answer"]
    assert spread_moves(view.leaders, view.answering, view.drained) == []


def test_what_waits_is_named_with_the_broker_it_waits_for() -> None:
    """A partition of the one that is gone, one that was moved from it and is not closed, and one of which its
    log owes some; another is whole."""
    view = a_view(
        partition(0, -1, [3], [3]),
        partition(1, -1, [2, 3], [3]),
        partition(2, 2, [2, 3], [3]),
        partition(3, 1, [1], []),
    )
    assert (view.leaderless, view.lacking) == ([("t", 0), ("t", 1)], [("t", 2)])
    assert view.waiting_for(3) == [("t", 0), ("t", 1), ("t", 2)]
    assert view.waiting_for(2) == []
    assert status_lines(view)[-6:] == [
        "",
        "without a leader: 2 partitions: t:0, t:1",
        "  2 of them wait for broker 3, or for its write-ahead log",
        "",
        "without some of their records: 1 partition: t:2",
        "  1 of them wait for broker 3, or for its write-ahead log",
    ]


def test_a_broker_that_is_ready_is_let_in_once_others_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It said so itself; whoever is asked learns it a moment later. One that is gone is waited for in vain,
    and one that nobody knows not at all."""
    looks = 0

    async def look_again() -> ClusterView:
        nonlocal looks
        looks += 1
        seen = a_view()
        return replace(seen, nodes=tuple(replace(node, is_fenced=looks < 2) for node in seen.nodes))

    seen = asyncio.run(when_serving(a_view(), 3, look_again))
    assert (looks, seen.serving) == (2, [1, 2, 3])
    assert asyncio.run(when_serving(a_view(), 9, look_again)).gone == [3]
    monkeypatch.setattr(views, "LEARN_S", 0.0)
    assert asyncio.run(when_serving(a_view(), 3, look_again)).gone == [3]
    assert looks == 2
