"""python -m tests.sim: runs of the simulator from the command line.

    python -m tests.sim hunt --seeds N [--from S] [--workers W]   drawn plans, one a seed
    python -m tests.sim crash [--seed S] [--step N]               every crash point (or every N-th) of a run,
                                                                  singly and doubly
    python -m tests.sim bugs [NAME ...] [--seeds N]               plants deliberate bugs, one at a time: each
                                                                  must be found
    python -m tests.sim one 'PLAN' [--lines N] [--bug NAME]       one run again, as a finding names it
    python -m tests.sim plan SEED                                 what the hunt does at that seed
    python -m tests.sim quorum hunt|bugs|one|plan ...             the same of quorums of controllers

Prints what it goes through and, at the end, how often each crash point, fault and checker was met. Exit code
1 for a finding, for something that was never met, or for a bug that was not found.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence

from tests.sim.hunt import (
    CRASH_MUST_HIT,
    FOR_LOSSES_ALONE,
    HUNT_MUST_HIT,
    R,
    Tally,
    crash_plans,
    drawn_plan,
    minimised,
)
from tests.sim.plan import parse_plan
from tests.sim.quorum import cli as quorum
from tests.sim.run import Outcome, run_plan
from tests.sim.story import tell
from tests.sim.workers import hunt_plans, hunt_seeds

STORIES = 3  # told at the end, of as many runs with findings


def main() -> int:
    found = arguments()
    began = time.monotonic()
    if found.command == "plan":
        print(drawn_plan(found.number))
        return 0
    if found.command == "one":
        return one(found.plan, found.lines, found.bug)
    if found.command == "quorum":
        return quorum.main(found, summed_up)
    if found.command == "bugs":
        from tests.sim.bugs import hunt_bugs

        return hunt_bugs(found.names, found.seeds, found.workers)
    if found.command == "crash":
        tally, must_hit = hunt_plans(crash_plans(found.seed, found.step), found.workers), CRASH_MUST_HIT
        tally.leave_out(FOR_LOSSES_ALONE)
    else:
        tally, must_hit = hunt_seeds(found.first, found.seeds, found.workers), HUNT_MUST_HIT
    return report(tally, must_hit, time.monotonic() - began)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.sim", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    hunt = commands.add_parser("hunt")
    hunt.add_argument("--seeds", type=int, default=10_000)
    hunt.add_argument("--from", dest="first", type=int, default=0)
    crash = commands.add_parser("crash")
    crash.add_argument("--seed", default="0")
    crash.add_argument("--step", type=int, default=1)
    bugs = commands.add_parser("bugs")
    bugs.add_argument("names", nargs="*")
    bugs.add_argument("--seeds", type=int, default=1_500)
    for command in (hunt, crash, bugs):
        command.add_argument("--workers", type=int, default=2)
    one = commands.add_parser("one")
    one.add_argument("plan")
    one.add_argument("--lines", type=int, default=0)
    one.add_argument("--bug")
    commands.add_parser("plan").add_argument("number", type=int)
    quorum.add_arguments(commands.add_parser("quorum"))
    return parser.parse_args()


def one(text: str, lines: int, bug: str | None) -> int:
    from tests.sim.bugs import BUGS

    with BUGS[bug].planted() if bug else contextlib.nullcontext():
        outcome = run_plan(parse_plan(text))
    print(*(outcome.lines[-lines:] if lines else tell(outcome.lines)), sep="\n")
    print(outcome.plan, dict(outcome.counts), outcome.digest)
    print(*outcome.findings, sep="\n")
    return 1 if outcome.findings else 0


def report(tally: Tally[Outcome], must_hit: Sequence[str], took_s: float) -> int:
    for outcome in tally.failed[:STORIES]:
        tell_story(outcome)
    return summed_up(tally, must_hit, took_s)


def summed_up(tally: Tally[R], must_hit: Sequence[str], took_s: float, again: str = "one") -> int:
    print(f"\n{tally.runs} runs in {took_s:.0f} s, {len(tally.failed)} with findings")
    for title, counts in (("met", tally.hits), ("looked at", tally.looked_at), ("found", tally.found)):
        print(f"{title}:", *(f"  {name}: {count}" for name, count in sorted(counts.items())), sep="\n")
    for outcome in tally.failed:
        print(f"again: python -m tests.sim {again} {str(outcome.plan)!r}")
    missing = tally.missing(must_hit)
    for name in missing:
        print(f"never met: {name}")
    return 1 if tally.failed or missing else 0


def tell_story(outcome: Outcome) -> None:
    """With as little as still shows the finding."""
    smaller = minimised(outcome)
    print(f"\n{outcome.plan}\n  in brief: {smaller.plan}")
    print(*(f"    {line}" for line in tell(smaller.lines)), sep="\n")
    print(*(f"  {line}" for line in smaller.findings[:5]), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
