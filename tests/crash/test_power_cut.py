"""Power cuts and kills of a whole node, at points spread over a run: nothing that anyone was told is lost,
changed or repeated.

The node is the real one, on a disk and a store that drop, keep or tear what was not synced (tests/sim). In
every run all is read twice: after the storm, and again from objects, with empty caches and an empty WAL. Here
a fixed small set; `make crash-sim` takes every point.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.sim.forks import run_all
from tests.sim.hunt import CHANGES, IN_PARTS, MULTIPART_STEPS, Tally, counted, double_plans, single_plans
from tests.sim.plan import SOON, Plan, Strike
from tests.sim.run import run_plan

ROOT = Path(__file__).resolve().parents[2]


def run_each(plans: Iterable[Plan]) -> Tally:
    tally = Tally()
    for outcome in run_all(plans, 2):
        tally.add(outcome)
    found = [f"{outcome.plan}: {line}" for outcome in tally.failed for line in outcome.findings[:3]]
    assert not found, "\n".join(found)
    return tally


def test_cuts_and_kills_at_points_of_a_run() -> None:
    """Every so-manieth disk write, put, deletion and command of a run, each with another fate of what was not
    durable; and the first of each name, compaction's commit among them."""
    tally = run_each(single_plans("suite", step=101))
    names = {name for kind, name in counted("suite").first_points if kind in CHANGES}
    assert {
        "CommitCompaction sent",
        "CommitCompaction carried out",
        "RemoveObjects sent",
        "delete in effect",
    } <= names
    assert not [name for name in names if not tally.hits[f"strike at: {name}"]]
    assert {"cut", "kill", "dropped", "kept", "torn"} <= set(tally.hits)
    unseen = [name for name, count in tally.looked_at.items() if not count]
    # A log of blocks is cut here, nothing in it is damaged, and no record is given up.
    assert all(
        name.endswith("log of objects") or name in ("EpochsEnd", "FollowersNotice") for name in unseen
    ), unseen


def test_cuts_and_kills_amid_an_upload_in_parts() -> None:
    """Each step of it, as it is asked for and as it takes effect."""
    tally = run_each(single_plans("suite", 40, IN_PARTS, ("part",)))
    for step in MULTIPART_STEPS:
        assert tally.hits[f"strike at: {step} sent"], step
        assert tally.hits[f"strike at: {step} in effect"], step
    assert tally.hits["multipart: its process died"]


def test_cuts_during_recovery() -> None:
    """A second cut soon after the first, while the node starts or has just started."""
    tally = run_each(double_plans("suite again", step=61))
    assert tally.hits["second strike"] > 10
    assert tally.hits["strike while it starts"] > 5


def test_first_starts_that_are_killed_and_then_lose_power() -> None:
    """A change of names that a killed start made and did not sync may be lost to a power cut long after:
    whatever is left, a start succeeds."""
    strikes = [
        (Strike("name", name, "kill"), Strike("next", then)) for name in range(1, 13) for then in (1, 2, 3)
    ]
    seeds = ("first", "once more")
    tally = run_each(
        Plan(seed, two, "any", cast="plain", batches=1, ends=SOON) for two in strikes for seed in seeds
    )
    assert tally.hits["undone"] > 3


def digest_in_a_process(plan: str, hash_seed: str) -> str:
    """Of the run's trace, made by another interpreter with another order of sets of strings."""
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    words = [sys.executable, "-m", "tests.sim", "one", plan, "--lines", "1"]
    done = subprocess.run(
        words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    found = re.search(r"\b[0-9a-f]{64}\b", done.stdout)
    assert found is not None, done.stdout
    return found[0]


def test_the_same_seed_is_the_same_run() -> None:
    """Two processes give the same trace of a run with strikes, to the last byte on the wire; another seed
    gives another."""
    plan = Plan("replay", (Strike("write", 90), Strike("store", 40, "kill")), "tear")
    digests = [digest_in_a_process(str(plan), hash_seed) for hash_seed in ("1", "2")]
    outcome = run_plan(plan)
    assert outcome.hits["second strike"] == 1
    assert digests == [outcome.digest] * 2
    assert run_plan(Plan("another", plan.strikes, plan.fate)).digest != outcome.digest
