"""A bug that is planted between the nodes of a cluster is found: a short form of `make sim-cluster-bugs`."""

from __future__ import annotations

import pytest

from tests.sim.cluster.bugs import BUGS, find_bug

SEEDS = (1, 2, 3, 6, 7, 8)  # most of which show both


@pytest.mark.parametrize(
    ("name", "seeds"),
    [("recovers-nothing", SEEDS), ("recovers-nobody", SEEDS[1:]), ("closes-at-once", SEEDS)],
)
def test_a_planted_bug_is_found(name: str, seeds: tuple[int, ...]) -> None:
    count, outcome = find_bug(name, seeds)
    assert outcome is not None, f"{BUGS[name].what}: not found in {count} seeds"
