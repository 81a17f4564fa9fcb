"""Which partitions `millrace cluster move` is asked for."""

from __future__ import annotations

import pytest

from millrace.broker.cli.cluster import moves_of, parse
from millrace.broker.cluster.moves import Move
from millrace.broker.cluster.view import ClusterView, NodeView

NODES = tuple(NodeView(node_id, True, True, "h:1", "", False, 0, 0) for node_id in (1, 2))
LEADERS = {("orders", 0): 1, ("orders", 1): 1, ("orders", 2): 2, ("other", 0): 1}
VIEW = ClusterView("c", 1, 1, 1, NODES, LEADERS, {}, {})


def moves(*names: str) -> list[Move]:
    return moves_of(VIEW, parse(["move", *names, "--to", "2"]))


def test_a_topic_or_one_of_its_partitions() -> None:
    """Once, however often it is named, and none that is there already."""
    assert moves("orders") == [Move("orders", 0, 2), Move("orders", 1, 2)]
    assert moves("orders:1", "orders:1", "orders:2") == [Move("orders", 1, 2)]


@pytest.mark.parametrize(
    "name", ["orders:", "orders:x", "orders:0,1", "orders:0-1", "orders:-1", "orders:9", ":"]
)
def test_what_is_no_partition_is_not_taken_for_the_topic(name: str) -> None:
    """All of a topic would go for a slip of the pen."""
    with pytest.raises(ValueError, match="say TOPIC or TOPIC:PARTITION"):
        moves(name)
