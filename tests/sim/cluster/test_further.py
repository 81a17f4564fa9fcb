"""What a plan has beside its trouble: halves, strikes at an await, logs that are lost; each is met, and
nothing is found."""

from __future__ import annotations

from tests.sim.cluster.plan import SHARED, Plan, drawn_plan
from tests.sim.cluster.run import run_plan
from tests.sim.cluster.strikes import Strike


def test_the_greater_half_goes_on_and_both_agree_once_healed() -> None:
    """Brokers in the other half run, and are shut out of their logs; all they acknowledged is there."""
    outcome = run_plan(Plan(1, controllers=3, troubles=2, is_calm=True, splits=1))
    assert not outcome.findings, outcome.findings[:3]
    assert outcome.hits["halves: the greater one led all"] == 1
    assert outcome.hits["halves: written in the greater one"] >= 1


def test_a_start_is_struck_between_two_steps() -> None:
    strikes = tuple(Strike("start", number, 60 * number, "tear") for number in range(5, 8))
    outcome = run_plan(Plan(2, troubles=3, is_calm=True, strikes=strikes))
    assert not outcome.findings, outcome.findings[:3]
    assert outcome.hits["struck: start"] >= 1


def test_what_only_a_lost_log_held_is_given_up_and_no_more() -> None:
    """By an unclean election, and by the start of its broker."""
    outcome = run_plan(Plan(4, wal=SHARED, troubles=0, is_calm=True, lost_logs=2))
    assert not outcome.findings, outcome.findings[:3]
    assert outcome.hits["given up: given up"] >= 1
    assert outcome.hits["given up: accepted"] >= 1
    assert outcome.looked_at["EpochsEnd"] >= 1


def test_a_plan_without_further_faults_is_the_one_that_it_was() -> None:
    plan = drawn_plan(320_001)
    assert plan.splits
    assert plan.strikes
    assert str(plan).startswith(str(plan.without_further()))


def test_a_run_with_all_of_them_repeats_itself() -> None:
    plan = Plan(2, wal=SHARED, troubles=1, splits=1, lost_logs=1, strikes=(Strike("start", 5, 100, "any"),))
    first, second = run_plan(plan), run_plan(plan)
    assert not first.findings, first.findings[:3]
    assert first.hits["struck: start"] == 1
    assert first.hits["split in halves"] >= 1
    assert sum(count for name, count in first.hits.items() if name.startswith("log lost: ")) >= 1
    assert first.digest == second.digest


def test_a_seal_that_is_decided_behind_its_brokers_end_gives_nothing_up() -> None:
    """The log is gone by then, and what was sealed is owed; that is what is lost with it."""
    outcome = run_plan(drawn_plan(320_138))
    assert not outcome.findings, outcome.findings[:3]
    assert outcome.hits["given up: what was owed"] >= 1
