"""Deliberate bugs in the controllers, which a hunt has to find within a bounded number of seeds, by the
checker that is there for each (`found_by`): that a process ends, or a run does not, shows none.

What is planted stands in planted.py. `python -m tests.sim quorum bugs [NAME ...]` plants one after the
other.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millrace.kraft.controller import Controller
from millrace.kraft.image.applier import Applier
from millrace.kraft.log import snapshot
from millrace.kraft.log.log_store import LogStore
from millrace.kraft.raft import core
from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.log_view import LogView
from millrace.kraft.raft.voters import VoterSet
from tests.sim.bugs import in_place
from tests.sim.plan import CALM
from tests.sim.quorum import planted as do
from tests.sim.quorum.hunt import drawn_plan, drawn_voters_plan, run_all
from tests.sim.quorum.plan import Plan
from tests.sim.quorum.run import Outcome


@dataclass(frozen=True, slots=True)
class Bug:
    """`make(old)` gives what stands in the place of `owner.name` instead. `where` makes of a drawn plan one
    in which the bug has something to break."""

    what: str
    owner: Any
    name: str
    make: Callable[[Any], Any]
    found_by: str
    where: Callable[[Plan], Plan] = lambda plan: plan

    def is_shown_by(self, outcome: Outcome) -> list[str]:
        """Its findings that count."""
        return [line for line in outcome.findings if line.startswith(f"{self.found_by}:")]

    def planted(self) -> contextlib.AbstractContextManager[None]:
        return in_place((self.owner, self.name, self.make))


def in_weather(*names: str, settings: str = CALM, observers: int = 0) -> Callable[[Plan], Plan]:
    """As drawn, but for these."""

    def where(plan: Plan) -> Plan:
        weather = dict.fromkeys([*names, *plan.weathers()[:1]])
        variants = settings if settings != CALM else plan.settings
        observers_max = max(plan.observers, observers)
        return replace(plan, weather="+".join(weather), settings=variants, observers=observers_max)

    return where


def of_voters(*names: str) -> Callable[[Plan], Plan]:
    """The same of a quorum whose voters come and go."""

    def where(plan: Plan) -> Plan:
        return in_weather(*names)(drawn_voters_plan(int(plan.seed)))

    return where


BUGS = {
    "vote-forgotten": Bug(
        "a vote is sent, and not remembered",
        LogStore,
        "save_state",
        do.remembers_no_vote,
        "vote-not-durable",
    ),
    "votes-twice": Bug(
        "who has voted votes again",
        Raft,
        "_would_grant",
        do.votes_again,
        "voted-twice",
        in_weather("slow net", "disorder"),
    ),
    "shorter-log-elected": Bug(
        "votes are given to logs that lack something",
        Raft,
        "_would_grant",
        do.votes_for_shorter_logs,
        "lacks-committed",
        in_weather("stragglers", "lonely leader"),
    ),
    "own-vote-is-enough": Bug(
        "who votes for itself is elected",
        core,
        "count_votes",
        do.wins_with_its_own_vote,
        "two-leaders",
        in_weather("blackouts"),
    ),
    "leader-disturbed": Bug(
        "who hears a leader grants a pre-vote",
        Raft,
        "_would_grant",
        do.helps_against_a_leader,
        "helped-against-a-leader",
        in_weather("one-way cuts"),
    ),
    "half-is-enough": Bug(
        "half of the voters are a majority",
        core,
        "majority_end",
        do.counts_the_furthest,
        "watermark-beyond-majority",
    ),
    "earlier-epoch-committed": Bug(
        "what is of an earlier epoch is committed by counting",
        Raft,
        "_advance",
        do.commits_what_is_of_earlier_epochs,
        "old-epoch-committed",
        in_weather("lonely leader"),
    ),
    "observers-counted": Bug(
        "observers count among the majority",
        Raft,
        "_advance",
        do.counts_observers,
        "watermark-beyond-majority",
        in_weather("slow disk", "partitions", observers=2),
    ),
    "end-believed": Bug(
        "a follower takes the leader's end for what is committed",
        Raft,
        "_on_fetch_reply",
        do.believes_the_leaders_end,
        "watermark-beyond-majority",
    ),
    "any-watermark-believed": Bug(
        "a new leader that knows less lowers what is committed",
        Raft,
        "_on_fetch_reply",
        do.believes_any_watermark,
        "watermark-fell",
        in_weather("lonely leader"),
    ),
    "not-synced": Bug(
        "a follower acknowledges before the sync",
        LogStore,
        "append_all",
        do.appends_without_a_sync,
        "acknowledged-before-durable",
    ),
    "full-disk-acknowledged": Bug(
        "what a full disk did not take is acknowledged",
        Raft,
        "may_send",
        do.says(True),
        "acknowledged-before-durable",
        in_weather("full disk"),
    ),
    "cut-too-much": Bug(
        "a log is cut below what is committed",
        Raft,
        "_truncate",
        do.cuts_too_much,
        "cut-below-watermark",
        in_weather("lonely leader", "slow net"),
    ),
    "log-not-reset": Bug(
        "a snapshot is installed, and the log stays",
        LogStore,
        "restart_at",
        do.keeps_the_log_beside_a_snapshot,
        "log-gap",
        in_weather("stragglers"),
    ),
    "batch-missed": Bug(
        "the first batch behind an installed snapshot is not applied",
        Applier,
        "install",
        do.misses_a_batch_after_an_install,
        "unequal-image",
        in_weather("stragglers"),
    ),
    "never-resigns": Bug(
        "a leader whose majority is gone goes on",
        Raft,
        "_tick_leader",
        do.goes_on_leading,
        "leads-alone",
        in_weather("lonely leader"),
    ),
    "leads-again": Bug(
        "a leader that was restarted goes on in its epoch",
        Raft,
        "__init__",
        do.leads_again_at_once,
        "led-again",
        in_weather("crashes"),
    ),
    "told-at-once": Bug(
        "a command is answered when it is proposed",
        Controller,
        "_propose",
        do.answers_what_is_proposed,
        "told-uncommitted",
    ),
    "blocks-given-early": Bug(
        "a block of producer ids is given out before it is committed",
        Controller,
        "_propose",
        do.gives_out_blocks_early,
        "told-uncommitted",
        in_weather("lonely leader"),
    ),
    "dropped-untold": Bug(
        "nobody is told of commands that were given up",
        Controller,
        "on_dropped",
        do.tells_nobody_of_what_is_dropped,
        "never-answered",
        in_weather("lonely leader"),
    ),
    "divergence-unseen": Bug(
        "any log counts as a beginning of the leader's",
        LogView,
        "check_fetch",
        do.takes_any_log_for_its_own,
        "committed-changed",
        in_weather("lonely leader", "stragglers"),
    ),
    "ids-lost-in-snapshots": Bug(
        "a snapshot does not hold the last block of producer ids",
        snapshot,
        "image_records",
        do.loses_ids_in_snapshots,
        "unequal-image",
        in_weather("stragglers", "crashes"),
    ),
    "topics-lost-in-snapshots": Bug(
        "a snapshot lacks a topic",
        snapshot,
        "image_records",
        do.loses_topics_in_snapshots,
        "forgotten",
        in_weather("stragglers", "crashes"),
    ),
    "block-not-written": Bug(
        "a block of producer ids is given out, and not written down",
        Controller,
        "_propose",
        do.writes_no_block_down,
        "id-twice",
    ),
    "leader-unheard": Bug(
        "a leader is given up however often it answers",
        Raft,
        "_on_fetch_reply",
        do.hears_no_leader,
        "flapping",
    ),
    "never-installed": Bug(
        "a leader's snapshot is never taken",
        Raft,
        "wants_snapshot",
        do.says(False),
        "not-settled",
        in_weather("stragglers", settings="snapshots all the time"),
    ),
    "two-changes-at-once": Bug(
        "voters are changed while the change before is not committed",
        Raft,
        "may_change_voters",
        do.changes_voters_at_once,
        "two-changes-open",
        of_voters("lonely leader"),
    ),
    "voters-at-commit": Bug(
        "voters are in force when their record is committed",
        Raft,
        "voter_set",
        do.changes_voters_at_commit,
        "watermark-beyond-majority",
        of_voters("lonely leader"),
    ),
    "any-directory": Bug(
        "a node of the voter's id is the voter, whatever disk it has",
        VoterSet,
        "has",
        do.takes_any_directory_for_the_voter,
        "watermark-beyond-majority",
        of_voters("slow disk", "partitions"),
    ),
    "parts-left": Bug(
        "a part of a snapshot that failed stays",
        snapshot,
        "part_of",
        do.leaves_parts,
        "part-left",
        in_weather("full disk", settings="snapshots all the time"),
    ),
}


@dataclass(frozen=True, slots=True)
class Hunted:
    """`outcome` is that of the first seed that shows it; None: so many seeds did not."""

    name: str
    seeds: int
    outcome: Outcome | None
    took_s: float


def find_bug(name: str, seeds: Sequence[int], workers: int = 1) -> Hunted:
    """Seeds are run in order; with several workers a few more than were needed."""
    began, bug = time.monotonic(), BUGS[name]
    plans = [bug.where(drawn_plan(seed)) for seed in dict.fromkeys(seeds)]
    ran = 0
    with bug.planted(), contextlib.closing(run_all(plans, workers)) as outcomes:
        for outcome in outcomes:
            ran += 1
            if bug.is_shown_by(outcome):
                return Hunted(name, ran, outcome, time.monotonic() - began)
    return Hunted(name, ran, None, time.monotonic() - began)


def hunt_bugs(names: Sequence[str], seeds_max: int, workers: int) -> int:
    """One after the other. Exit code 1 when one is not found."""
    chosen = list(names) or list(BUGS)
    missed = []
    for name in chosen:
        hunted = find_bug(name, range(seeds_max), workers)
        print(f"{name} ({BUGS[name].what})")
        if hunted.outcome is None:
            missed.append(name)
            print(f"    NOT FOUND in {hunted.seeds} seeds, {hunted.took_s:.0f} s", flush=True)
            continue
        print(f"    found at seed {hunted.seeds}, {hunted.took_s:.0f} s")
        print(f"    {BUGS[name].is_shown_by(hunted.outcome)[0][:200]}")
        print(
            f"    again: python -m tests.sim quorum one {str(hunted.outcome.plan)!r} --bug {name}", flush=True
        )
    found = len(chosen) - len(missed)
    print(f"{found} of {len(chosen)} bugs were found; missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0
