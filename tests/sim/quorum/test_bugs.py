"""Bugs that are planted on purpose in controllers are found, by the checker that is there for each."""

from __future__ import annotations

import pytest

from tests.sim.quorum.bugs import BUGS, find_bug
from tests.sim.quorum.plan import Plan
from tests.sim.quorum.run import Outcome
from tests.sim.signatures import misfits

# The seed that shows a bug first, where that is not the first one: tried before the others.
SEEN_AT = {
    "any-watermark-believed": 2,
    "block-not-written": 5,
    "divergence-unseen": 3,
    "earlier-epoch-committed": 8,
    "leader-disturbed": 3,
    "leader-unheard": 5,
    "never-resigns": 2,
    "shorter-log-elected": 3,
    "votes-twice": 3,
}
SEEDS = 12


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    """Within a few seeds."""
    hunted = find_bug(name, [SEEN_AT.get(name, 1), *range(SEEDS)])
    assert hunted.outcome is not None, f"not in {hunted.seeds} seeds"


@pytest.mark.parametrize("name", BUGS)
def test_a_run_that_merely_fails_shows_no_bug(name: str) -> None:
    """What goes wrong in a way that the bug was not planted for does not count."""
    bug = BUGS[name]
    failed = ["run-failed: TimeoutError()", "process-ended: KeyError(0)", f"{bug.found_by}: so it is"]
    assert bug.is_shown_by(Outcome(Plan(), failed)) == failed[2:]


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_called_as_what_it_replaces(name: str) -> None:
    """However the product calls the function: else each start ends with a TypeError, which shows no bug."""
    bug = BUGS[name]
    real = getattr(bug.owner, bug.name)
    assert misfits(real, bug.make(real)) == []
