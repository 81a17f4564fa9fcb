"""Which plans of quorums are run, in how many processes, and what of it all has to be met."""

from __future__ import annotations

import multiprocessing
from collections.abc import Generator, Sequence
from dataclasses import replace

from tests.sim.hunt import Tally
from tests.sim.plan import CALM
from tests.sim.quorum.plan import EVENTS, EVENTS_OF_ALL, Plan, draw_plan
from tests.sim.quorum.run import Outcome, run_plan
from tests.sim.quorum.settings import VARIANTS
from tests.sim.quorum.weather import WEATHERS
from tests.sim.workers import tallied

# What a hunt of a few hundred seeds must have met, in every one of these ways.
MUST_HIT = (
    *(f"weather: {name}" for name in WEATHERS),
    *(f"settings: {name}" for name in VARIANTS),
    *(f"strike at: {kind}" for kind in (*EVENTS, *EVENTS_OF_ALL)),
    *(f"cut at: {kind}" for kind in ("state", "truncate", "snapshot", "install", "restart")),
    *(f"kill at: {kind}" for kind in ("state", "truncate", "snapshot", "install", "restart")),
    *("fail at: append", "fail at: sync"),
    *("cut", "kill", "kept", "dropped", "torn", "full", "flip", "freeze", "froze a leader", "slow disk"),
    *("lost", "sent twice", "out of order", "cut off", "whole partition", "clock set", "orderly stop"),
    *("snapshot fetched", "snapshot broken off", "snapshot gone at the leader"),
    *("snapshot damaged", "damaged snapshot refused", "ended by itself"),
    *(
        "not leader",
        "no answer in time",
        "proposal dropped",
        "log full",
        "many elections",
        "blackout",
        "a voter away",
    ),
    *("resigned without a majority", "votes refused", "logs diverged", "command in several turns"),
    *("added a voter", "removed a voter", "removed the leader", "moved a voter"),
    *("disk lost", "removed a lost voter"),
)


def drawn_plan(number: int) -> Plan:
    """What the hunt does at this seed."""
    return draw_plan(str(number), list(WEATHERS), list(VARIANTS))


def drawn_voters_plan(number: int) -> Plan:
    """The same with voters that come and go. None stays away: two of two may be all that there are."""
    plan = drawn_plan(number)
    nodes = len(plan.node_ids)
    voters = min(1 + number % 3, nodes - 1)
    weather = "+".join(name for name in plan.weathers() if name != "one away") or CALM
    return replace(plan, voters=voters, observers=nodes - voters, weather=weather, is_dynamic=True)


def brief(plan: Plan) -> Outcome:
    """Without the lines of its trace."""
    outcome = run_plan(plan)
    outcome.lines = []
    return outcome


def run_all(plans: Sequence[Plan], workers: int) -> Generator[Outcome, None, None]:
    """As they come, in processes of their own where there are several."""
    if workers == 1:
        yield from map(brief, plans)
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap_unordered(brief, plans, chunksize=1)


def hunt_seeds(first: int, count: int, workers: int) -> Tally[Outcome]:
    run_plan(Plan())  # what is compiled at its first use is there for all who are forked
    plans = [drawn_plan(number) for number in range(first, first + count)]
    plans += [drawn_voters_plan(number) for number in range(first, first + count, 2)]
    return tallied(run_all(plans, workers), len(plans))


def minimised(outcome: Outcome, runs_max: int = 40) -> Outcome:
    """A smaller plan that has a finding of the same kind, as far as so many runs find one."""
    kinds = kinds_of(outcome)
    plans = outcome.plan.smaller()
    while runs_max and (plan := next(plans, None)) is not None:
        runs_max -= 1
        smaller = run_plan(plan)
        if kinds & kinds_of(smaller):
            outcome, plans = smaller, plan.smaller()
    return outcome


def kinds_of(outcome: Outcome) -> set[str]:
    return {line.partition(":")[0] for line in outcome.findings}
