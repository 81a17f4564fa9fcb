"""python -m tests.sim: runs of the simulator from the command line.

    python -m tests.sim crash [--seed S] [--step N]     every crash point (or every N-th) of a run, singly and doubly
    python -m tests.sim one 'PLAN'                      one run again, as a finding names it: "seed=0 fate=tear cut@write17 cut@write20"

Prints what it goes through and, at the end, how often each crash point, fault and checker was met. Exit code 1 for a finding, or for
something that was never met.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterable

from tests.sim.hunt import Tally, double_plans, single_plans, weather_plans
from tests.sim.run import Outcome, Plan, Strike, run_plan

SAY_EVERY_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.sim", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    crash = commands.add_parser("crash")
    crash.add_argument("--seed", default="0")
    crash.add_argument("--step", type=int, default=1)
    one = commands.add_parser("one")
    one.add_argument("plan")
    one.add_argument("--tail", type=int, default=60)
    found = parser.parse_args()
    if found.command == "one":
        return show(run_plan(parse_plan(found.plan)), found.tail)
    plans = itertools.chain(
        single_plans(found.seed, step=found.step),
        double_plans(f"{found.seed} again", step=found.step),
        weather_plans(f"{found.seed} weather", 1 + 60 // found.step),
    )
    return hunt(plans)


def hunt(plans: Iterable[Plan]) -> int:
    tally = Tally()
    began = said = time.monotonic()
    for plan in plans:
        outcome = run_plan(plan)
        tally.add(outcome)
        for finding in outcome.findings[:5]:
            print(f"{plan}: {finding}", flush=True)
        if time.monotonic() - said > SAY_EVERY_S:
            said = time.monotonic()
            print(f"{tally.runs} runs in {said - began:.0f} s, now at {plan}", flush=True)
    print(f"\n{tally.runs} runs in {time.monotonic() - began:.0f} s, {len(tally.failed)} with findings")
    for title, counts in (("met", tally.hits), ("looked at", tally.looked_at)):
        print(f"{title}:", *(f"  {name}: {count}" for name, count in sorted(counts.items())), sep="\n")
    for outcome in tally.failed:
        print(f"again: python -m tests.sim one {str(outcome.plan)!r}")
    for name in tally.missing():
        print(f"never met: {name}")
    return 1 if tally.failed or tally.missing() else 0


def show(outcome: Outcome, tail: int) -> int:
    print(*outcome.tail[len(outcome.tail) - tail :], sep="\n")
    print(outcome.plan, dict(outcome.counts), outcome.digest)
    print(*outcome.findings, sep="\n")
    return 1 if outcome.findings else 0


def parse_plan(text: str) -> Plan:
    """The inverse of str(plan)."""
    words = text.split(" ")
    strikes = []
    values = {"seed": "0", "fate": "any", "weather": "calm"}
    name = ""
    for word in words:
        if "@" in word:
            action, _, point = word.partition("@")
            kind = point.rstrip("0123456789")
            strikes.append(Strike(kind, int(point[len(kind) :]), action))
        elif "=" in word:
            name, _, value = word.partition("=")
            values[name] = value
        elif word:
            values[name] += f" {word}"
    return Plan(values["seed"], tuple(strikes), values["fate"], values["weather"])


if __name__ == "__main__":
    sys.exit(main())
