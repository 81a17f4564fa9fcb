"""A bug that is planted between the nodes of a cluster is found: a short form of `make sim-cluster-bugs`."""

from __future__ import annotations

import pytest

from tests.sim.cluster.bugs import BUGS, find_bug

SEEDS = (1, 2, 3, 6, 7, 8)  # most of which show those of logs that have no claims
# The seed that shows a bug first, where that is not the first of those: tried before the others.
SEEN_AT = {
    "accepts-too-much": 0,
    "acknowledged-unlooked": 5,
    "claim-not-raised": 11,
    "clock-believed": 2,
    "empties-as-it-reads": 2,
    "passes-over": 2,
    "read-before-claimed": 0,
    "recovers-an-empty-one": 4,
    "recovers-no-owed": 1,
    "recovers-nobody": 2,
    "serves-in-both-halves": 0,
    "starts-with-an-empty-one": 0,
    "steps-over": 5,
}


@pytest.mark.parametrize(
    "name",
    [
        "recovers-nothing",
        "recovers-unreached",
        "reads-no-history",
        "takes-open-streams",
        "closes-at-once",
        "owes-nobody",
        *SEEN_AT,
    ],
)
def test_a_planted_bug_is_found(name: str) -> None:
    seeds = dict.fromkeys((SEEN_AT.get(name, SEEDS[0]), *SEEDS))
    count, outcome = find_bug(name, seeds)
    assert outcome is not None, f"{BUGS[name].what}: not found in {count} seeds"


def test_every_bug_of_the_table_is_there() -> None:
    """A bug that was renamed is not hunted by its old seed for ever."""
    assert {*SEEN_AT} <= {*BUGS}
