"""Many runs at once, in processes that fork off one another (forks.py), with a word now and then of how far
they are."""

from __future__ import annotations

import time
from collections.abc import Iterable

from tests.sim.forks import run_all
from tests.sim.hunt import ENUMERATED, R, Tally, drawn_plan
from tests.sim.plan import Plan, Strike
from tests.sim.run import Outcome, run_plan

SAY_EVERY_S = 10.0


def hunt_seeds(first: int, count: int, workers: int) -> Tally[Outcome]:
    """The seeds from `first` on."""
    return hunt_plans((drawn_plan(number) for number in range(first, first + count)), workers)


def hunt_plans(plans: Iterable[Plan], workers: int) -> Tally[Outcome]:
    chosen = list(plans)
    warm()
    return tallied(run_all(chosen, workers), len(chosen))


def tallied(outcomes: Iterable[R], count: int) -> Tally[R]:
    """As they come, with a word now and then."""
    tally: Tally[R] = Tally()
    said = began = time.monotonic()
    for outcome in outcomes:
        tally.add(outcome)
        if outcome.findings:
            print(f"{outcome.plan}: {outcome.findings[0]}", flush=True)
        now = time.monotonic()
        if now - said > SAY_EVERY_S:
            said = now
            print(progress(tally, count, now - began), flush=True)
    return tally


def progress(tally: Tally[R], count: int, took_s: float) -> str:
    rate = tally.runs / took_s
    left_s = (count - tally.runs) / rate
    return (
        f"{tally.runs} of {count} runs, {rate:.1f} a second, {left_s:.0f} s to go, {len(tally.failed)} "
        "with findings"
    )


def warm() -> None:
    """What is compiled or loaded at its first use is there for all who are forked."""
    for settings in ENUMERATED:
        run_plan(Plan("warm", (Strike("write", 90),), settings=settings, batches=4))
