"""python -m tests.sim quorum: runs of simulated quorums from the command line.

quorum hunt --seeds N [--from S] [--workers W]   drawn plans, one a seed
quorum bugs [NAME ...] [--seeds N]               plants deliberate bugs, one at a time: each must be found
quorum one 'PLAN' [--lines N] [--bug NAME]       one run again, as a finding names it
quorum plan SEED                                 what the hunt does at that seed
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable

from tests.sim.quorum import bugs, hunt
from tests.sim.quorum.plan import parse_plan
from tests.sim.quorum.run import Outcome, run_plan

STORIES, STORY_LINES = 3, 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="of_quorum", required=True)
    hunting = commands.add_parser("hunt")
    hunting.add_argument("--seeds", type=int, default=2_000)
    hunting.add_argument("--from", dest="first", type=int, default=0)
    planting = commands.add_parser("bugs")
    planting.add_argument("names", nargs="*")
    planting.add_argument("--seeds", type=int, default=200)
    for command in (hunting, planting):
        command.add_argument("--workers", type=int, default=2)
    one = commands.add_parser("one")
    one.add_argument("plan")
    one.add_argument("--lines", type=int, default=STORY_LINES)
    one.add_argument("--bug")
    commands.add_parser("plan").add_argument("number", type=int)


def main(found: argparse.Namespace, report: Callable[..., int]) -> int:
    """`report` tells of a tally and gives the exit code."""
    if found.of_quorum == "plan":
        print(hunt.drawn_plan(found.number))
        return 0
    if found.of_quorum == "one":
        return run_one(found.plan, found.lines, found.bug)
    if found.of_quorum == "bugs":
        return bugs.hunt_bugs(found.names, found.seeds, found.workers)
    began = time.monotonic()
    tally = hunt.hunt_seeds(found.first, found.seeds, found.workers)
    for outcome in tally.failed[:STORIES]:
        tell_story(outcome)
    return report(tally, hunt.MUST_HIT, time.monotonic() - began, "quorum one")


def run_one(text: str, lines: int, bug: str | None) -> int:
    with bugs.BUGS[bug].planted() if bug else contextlib.nullcontext():
        outcome = run_plan(parse_plan(text))
    print(*outcome.lines[-lines:], sep="\n")
    print(outcome.plan, dict(outcome.counts), outcome.digest)
    print(*outcome.findings, sep="\n")
    return 1 if outcome.findings else 0


def tell_story(outcome: Outcome) -> None:
    """With as little as still shows the finding, and what came just before it."""
    smaller = hunt.minimised(outcome)
    print(f"\n{outcome.plan}\n  in brief: {smaller.plan}")
    before = next((at for at, line in enumerate(smaller.lines) if " finding " in line), len(smaller.lines))
    print(*(f"    {line}" for line in smaller.lines[max(0, before - STORY_LINES) : before + 1]), sep="\n")
    print(*(f"  {line}" for line in smaller.findings[:5]), sep="\n")
