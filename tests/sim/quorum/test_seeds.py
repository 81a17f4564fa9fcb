"""Drawn quorums in the suite: a fixed handful of the hunt's seeds, replay, and plans as text."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.quorum.hunt import drawn_plan, drawn_voters_plan
from tests.sim.quorum.plan import parse_plan
from tests.sim.quorum.run import run_plan

AT_A_TIME = 5


@pytest.mark.parametrize("first", range(0, 8 * AT_A_TIME, AT_A_TIME))
def test_nothing_is_found_at_fixed_seeds(first: int) -> None:
    """Quorums under drawn weather, strikes and settings keep every promise, and every checker looked."""
    for number in range(first, first + AT_A_TIME):
        outcome = run_plan(drawn_plan(number))
        assert not outcome.findings, f"{outcome.plan}: {outcome.findings[:3]}"
        assert all(outcome.looked_at[name] for name in ("votes", "acknowledgements", "watermarks", "images"))


@pytest.mark.parametrize("first", range(0, 6 * AT_A_TIME, AT_A_TIME))
def test_nothing_is_found_while_voters_come_and_go(first: int) -> None:
    """Added, removed, moved, and their disks lost: the same promises, for any of the sets."""
    hits: Counter[str] = Counter()
    for number in range(first, first + AT_A_TIME):
        outcome = run_plan(drawn_voters_plan(number))
        assert not outcome.findings, f"{outcome.plan}: {outcome.findings[:3]}"
        hits += outcome.hits
    assert hits["added a voter"]
    assert hits["removed a voter"] + hits["removed the leader"]


def test_a_run_with_other_voters_repeats_itself() -> None:
    """From the text of its plan, as any."""
    plan = drawn_voters_plan(4)
    assert parse_plan(str(plan)) == plan
    assert run_plan(plan).digest == run_plan(parse_plan(str(plan))).digest


@pytest.mark.parametrize("number", [3, 21])
def test_a_run_repeats_itself(number: int) -> None:
    """From the text of its plan, to the last disk write and message."""
    plan = drawn_plan(number)
    assert parse_plan(str(plan)) == plan
    once, again = run_plan(plan), run_plan(parse_plan(str(plan)))
    assert once.digest == again.digest
    assert once.counts == again.counts
