"""Runs that fork off one another are the runs from scratch, whatever they find."""

from __future__ import annotations

import os
from dataclasses import replace

from tests.sim.bugs import BUGS
from tests.sim.forks import FINDING_CHARS, FINDINGS_TOLD, run_all
from tests.sim.hunt import drawn_plan
from tests.sim.plan import FATES, SOON, Plan, Strike
from tests.sim.run import Outcome, Run, run_plan

BASE = Plan("fork", settings="object wal", cast="idempotent+plain+burst+trimmer", batches=3, ends=SOON)


def forked(plans: list[Plan]) -> dict[Plan, Outcome]:
    outcomes = {outcome.plan: outcome for outcome in run_all(plans, 2)}
    assert set(outcomes) == set(plans)
    return outcomes


def test_a_forked_run_is_the_run_from_scratch() -> None:
    """To the last byte on the wire: one strike or two, and strikes that never come."""
    strikes = [
        (Strike("write", 40),),
        (Strike("write", 40), Strike("write", 47)),
        (Strike("write", 40), Strike("write", 4000)),
        (Strike("change", 20, "kill"), Strike("change", 23)),
        (Strike("command", 30),),
        (Strike("store", 9000),),
    ]
    for plan, outcome in forked([replace(BASE, strikes=one, fate="tear") for one in strikes]).items():
        scratch = run_plan(plan)
        assert not outcome.findings
        assert (outcome.digest, outcome.counts, outcome.hits) == (
            scratch.digest,
            scratch.counts,
            scratch.hits,
        ), plan


def test_drawn_plans_in_processes_are_the_same_runs() -> None:
    """A hunt's seeds, strikes between callbacks and weather included."""
    plans = [drawn_plan(number) for number in range(900, 902)]
    assert {plan: outcome.digest for plan, outcome in forked(plans).items()} == {
        plan: run_plan(plan).digest for plan in plans
    }


def test_a_planted_bug_is_found_in_both() -> None:
    """The same findings, at the same plans."""
    plans = [
        replace(BASE, settings="plain", strikes=(Strike("write", number),), fate="drop")
        for number in (60, 75, 90)
    ]
    with BUGS["offsets-again"].planted():
        outcomes = forked(plans)
        scratch = {plan: run_plan(plan) for plan in plans}
    assert any(outcome.findings for outcome in outcomes.values())
    for plan, outcome in outcomes.items():
        told = [line[:FINDING_CHARS] for line in scratch[plan].findings[:FINDINGS_TOLD]]
        assert (outcome.findings, outcome.digest) == (told, scratch[plan].digest)


def test_what_is_said_to_have_the_same_future_has_it() -> None:
    """Fates that leave the same disk and bucket: such a run, lived from scratch, does what the other did from
    the restart on."""
    for number in range(48, 60):  # the first write that some fates leave otherwise, and some alike
        plans = [replace(BASE, strikes=(Strike("write", number),), fate=fate) for fate in FATES]
        outcomes = forked(plans)
        lived = [outcome for outcome in outcomes.values() if outcome.digest]
        if 1 < len(lived) < len(plans):
            break
    else:
        raise AssertionError("every write is left the same, or differently, by all fates")
    futures = {(tuple(outcome.counts.items()), tuple(outcome.looked_at.items())) for outcome in lived}
    for plan, outcome in outcomes.items():
        scratch = run_plan(plan)
        assert outcome.hits["the same state as another"] == (not outcome.digest)
        assert (tuple(scratch.counts.items()), tuple(scratch.looked_at.items())) in futures


def test_a_process_that_dies_is_a_finding() -> None:
    """What goes wrong outside of a run is told; nobody waits for it."""
    before = Run.result

    def result(self: Run) -> Outcome:
        raise RuntimeError(f"in {os.getpid()}")

    Run.result = result  # type: ignore[method-assign]
    try:
        (outcome,) = forked([BASE]).values()
    finally:
        Run.result = before  # type: ignore[method-assign]
    assert outcome.findings[0].startswith("run-died")
