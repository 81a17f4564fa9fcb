"""Hunts through drawn clusters, one plan a seed, side by side; and tells what was never reached."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context

from tests.sim.cluster.lost_logs import WAYS
from tests.sim.cluster.plan import WALS, drawn_plan
from tests.sim.cluster.run import Outcome, run_plan
from tests.sim.cluster.strikes import OPERATIONS
from tests.sim.hunt import Tally
from tests.sim.workers import tallied

RUNS_A_PROCESS = 50
# What a hunt of some hundred seeds has to meet, or it looked at less than it says.
MUST_HIT = (
    "kill of a broker",
    "kill of a controller",
    "power cut of a broker",
    "stop of a broker",
    "stop of all",
    "kill of a controller and broker",
    "power cut of a controller and broker",
    "cut off of a controller and broker",
    "halt of a broker",
    "cut off of a broker",
    "cut off of a controller",
    "cut from the bucket of a broker",
    "cut from the bucket of a controller and broker",
    "clock set of a broker",
    "clock set of a controller",
    "disk lost of a broker",
    "disk lost of a controller",
    "disk lost of a controller and broker",
    "partition moved",
    "owed: by an earlier owner",
    "owed: by several",
    "owed: uploaded",
    "failover: given to a broker",
    "failover: done",
    "failover: waits",
    "failover: the broker is back",
    "sets of about one size were merged",
    "sets of a broker that is gone were compacted",
    "ended, for it was replaced",
    "absence: taken over",
    "absence: waited for",
    "absence: history read",
    "slow writes of a broker",
    "replaced while it stood still of a broker",
    "replaced while it was cut off of a broker",
    "crash of who came after of a broker",
    "late write landed behind another's: the ring",
    "split: brokers on either side",
    "split: controllers on either side",
    "split: a broker that runs was fenced",
    "halves: the greater one led all",
    "halves: written in the greater one",
    *(f"struck: {operation}" for operation in OPERATIONS),
    *(f"log lost: {way}" for way in WAYS),
    "log lost: the start was refused",
    "log lost: accepted, and it was there",
    "log lost: in reach again, and recovered by another",
    "log lost: in reach again, and its broker came back",
    "given up: given up",
    "given up: accepted",
    "given up: what was owed",
    "given up: acknowledged records",
    "given up: commits",
    "given up: the log came back",
)


def run_seed(seed: int, wal: str = "") -> Outcome:
    plan = drawn_plan(seed)
    return run_plan(replace(plan, wal=wal) if wal else plan)


def run_all(first: int, count: int, workers: int, wal: str) -> Iterator[Outcome]:
    """Processes are new ones after every so many runs, for each keeps some memory; by a pool of their own, as
    Python 3.11's `max_tasks_per_child` may leave a pool without any, waiting."""
    end, step = first + count, RUNS_A_PROCESS * workers
    for start in range(first, end, step):
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            yield from pool.map(partial(run_seed, wal=wal), range(start, min(end, start + step)))


def hunt_seeds(first: int, count: int, workers: int, wal: str = "") -> Tally[Outcome]:
    return tallied(run_all(first, count, workers, wal), count)


def main() -> int:
    """Prints what was met. Exit code 1 for a finding, or for something that was never met."""
    parser = argparse.ArgumentParser(
        "python -m tests.sim.cluster.hunt", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--wal", choices=tuple(WALS), default="", help="of all plans")
    given = parser.parse_args()
    tally = hunt_seeds(given.first, given.seeds, given.workers, given.wal)
    for name, count in sorted((*tally.hits.items(), *tally.looked_at.items())):
        print(f"{count:10} {name}")
    missing = tally.missing(MUST_HIT)
    print(f"{tally.runs} runs, {len(tally.failed)} with findings; never met: {missing or 'nothing'}")
    return int(bool(tally.failed or missing))


if __name__ == "__main__":
    sys.exit(main())
