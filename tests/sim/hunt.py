"""Which plans are run, and what of it is kept: drawn ones, seed by seed, or every point of one run, one after
the other.

The points enumerated are those of a run without strikes, which is counted first: each with a fate, and again
with a second strike during the recovery from the first. Where they are thinned out, the first of each name
stays: what has to be struck does not depend on the step. A run that was struck goes its own way from there
on, so a second strike is planned some events after the first, wherever that falls. Bad weather is run with
strikes at points drawn from the seed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from millrace.runtime.rand import Rand
from tests.sim.older_wal import CURRENT, OLDER
from tests.sim.plan import CALM, FATES, PLAIN, SOON, Plan, Strike, draw_plan
from tests.sim.run import CAST, Outcome, run_plan
from tests.sim.settings import VARIANTS
from tests.sim.weather import WEATHERS

SECOND_AFTER = (1, 4, 2, 7, 11, 5, 16, 9, 22, 13, 29, 19, 37, 46)  # events, of the kind of the first
# Weathers of an enumeration: the others are for drawn plans.
ROUGH_WEATHERS = ("rough store", "store away", "full bucket", "full disk")
CHANGES = ("write", "change", "command")
ENUMERATED = (PLAIN, "object wal")  # settings
IN_PARTS = "small parts"  # where the steps of uploads in parts are enumerated, which the others have none of
PART_FATES = ("drop", "keep", "any")  # of what the store was sent: it came, or not, or late

COMMANDS = (
    "PrepareObjects",
    "CommitUpload",
    "CommitCompaction",
    "OpenPartitionStreams",
    "CloseStreams",
    "TrimStreams",
    "BrokerRegistration",
)
# These come a few times a run, or at its end: beyond what a hunt draws for.
SELDOM_COMMANDS = (
    "RemoveObjects",
    "CreateTopics",
    "DeleteTopics",
    "AllocateProducerIds",
    "GetOpeningStreams",
)
MOMENTS = ("sent", "carried out")
MULTIPART_STEPS = ("multipart_start", "multipart_part", "multipart_complete")

WAL_MET = (" refused", " refused, with a log of objects", ": loss accepted", ": records given up")
# What an enumeration and a hunt must have met, in every one of these ways.
BOTH_MUST_HIT = (
    "strike at a write",
    "strike at a change",
    "strike at: WAL block",
    "strike at: WAL header",
    "strike at: metadata log",
    "strike at: snapshot",
    "strike at: put sent",
    "strike at: put in effect",
    "strike at: WAL object sent",
    "strike at: WAL object in effect",
    "compaction: sets merged or split",
    "compaction: streams merged",
    "compaction: composites",
    "strike at: delete sent",
    "strike at: delete in effect",
    "strike at: get sent",
    *(f"strike at: {command} {moment}" for command in COMMANDS for moment in MOMENTS),
    "cut",
    "kill",
    "reset",
    "dropped",
    "kept",
    "torn",
    "strike while it starts",
    "strike while it serves",
    "second strike",
    "break",
    "orderly stop",
    "owned partitions",
    "REFUSED",
    "THROTTLED",
    "LOST_REQUEST",
    "LOST_ANSWER",
    "LATE",
    "AWAY",
    "FULL",
    "full",
    *(f"weather: {weather}" for weather in ROUGH_WEATHERS),
)
# ... an enumeration alone
CRASH_MUST_HIT = (
    *BOTH_MUST_HIT,
    "strike at a command",
    "strike at a part",
    "strike at a read",
    "strike at: get in effect",
    *(
        f"strike at: WAL {what} {moment}"
        for what in ("get", "list", "delete")
        for moment in ("sent", "in effect")
    ),
    *(f"strike at: {command} {moment}" for command in SELDOM_COMMANDS for moment in MOMENTS),
    *(f"strike at: {step} {moment}" for step in MULTIPART_STEPS for moment in ("sent", "in effect")),
)
# ... and a hunt over drawn plans.
# Checkers of weathers that lose what was acknowledged: power cuts and kills lose nothing.
FOR_LOSSES_ALONE = ("EpochsEnd", "FollowersNotice")
HUNT_MUST_HIT = (
    *BOTH_MUST_HIT,
    "strike at a turn",
    "strike at a promise",
    "strike at a crowd",
    "strike at a lap",
    "strike at an again",
    "ended for a failed write",
    "a start failed for lack of room",
    "a start failed for a failed write",
    "older log directory refused",
    "older WAL refused",
    "older log directory refused, with a log of objects",
    "older WAL refused, with a log of objects",
    "older log directory and bucket refused, with a log of objects",
    "older bucket refused",
    "emptied bucket refused",
    "another bucket refused",
    "older log directory and bucket refused",
    "new WAL refused",
    "another node's WAL refused",
    "former WAL refused",
    "new WAL of the other kind refused",
    "former WAL of the other kind refused",
    "another WAL: loss accepted",
    "another WAL: records given up",
    *(f"{what}{met}" for what in (OLDER, CURRENT) for met in WAL_MET),
    "cloned: the first one ended",
    "cloned: the first one halted",
    "cloned: acknowledged by the first one",
    "cloned: named by the first one",
    "cloned: refused, for the first one went on",
    "salvage: refused",
    "salvage: skip",
    "salvage: skip leaves a hole",
    "salvage: truncate",
    "salvage: records given up",
    "salvage: no policy helps",
    "restore: with a log of objects",
    "restore: with a log of blocks",
    "restore: without a log",
    "restore: from a copy of the bucket",
    "restore: from the same copy again",
    "restore: loss accepted",
    "restore: records given up",
    "damaged log refused",
    "damaged log of objects refused",
    "damaged log read around",
    "flip",
    "unreadable",
    "ROT",
    "LOST_RACE",
    "a rival was first",
    "ended for a rival",
    "replaced process fenced",
    "replaced process frozen",
    "misdirect",
    "stray write refused",
    "LATE_OF_THE_DEAD",
    "SLOW_LIST",
    "undone",
    "strike at a name",
    "strike at a next",
    "strike at a seldom",
    "conditional put: its own was there",
    "conditional put: another was first",
    *(
        f"multipart: {what}"
        for what in ("completed", "completed when complete", "aborted", "a part again", "its process died")
    ),
    *(f"{step} {fault}" for step in MULTIPART_STEPS for fault in ("LOST_REQUEST", "LOST_ANSWER", "LATE")),
    "multipart_abort LOST_ANSWER",
    "sever",
    "stopped reading",
    "lost answer of the controller",
    *(f"weather: {weather}" for weather in WEATHERS),
    *(f"settings: {variant}" for variant in VARIANTS),
    *(f"cast: {actor}" for actor in CAST),
)


class Ran(Protocol):
    """What a run tells of itself, of a node or of a quorum."""

    @property
    def plan(self) -> object: ...

    findings: list[str]
    hits: Counter[str]
    looked_at: Counter[str]


R = TypeVar("R", bound=Ran)


@dataclass
class Tally(Generic[R]):
    """What many runs met and found."""

    runs: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    looked_at: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)  # kinds of findings, a run once each
    failed: list[R] = field(default_factory=list)

    def add(self, outcome: R) -> None:
        self.runs += 1
        self.hits += outcome.hits
        self.looked_at.update(outcome.looked_at)
        if outcome.findings:
            self.found.update({line.partition(":")[0] for line in outcome.findings})
            self.failed.append(outcome)

    def leave_out(self, names: Sequence[str]) -> None:
        """Checkers that need not be met."""
        for name in names:
            del self.looked_at[name]

    def missing(self, must_hit: Sequence[str] = CRASH_MUST_HIT) -> list[str]:
        """Faults and checkers that were never met."""
        return [name for name in (*must_hit, *self.looked_at) if not self.hits[name] + self.looked_at[name]]


def drawn_plan(number: int) -> Plan:
    """What the hunt does at this seed."""
    return draw_plan(str(number), list(WEATHERS), list(VARIANTS), list(CAST))


def minimised(outcome: Outcome, runs_max: int = 40) -> Outcome:
    """A smaller plan that has a finding of the same kind, as far as so many runs find one."""
    kinds = {line.partition(":")[0] for line in outcome.findings}
    for _ in range(runs_max):
        for plan in outcome.plan.smaller():
            runs_max -= 1
            smaller = run_plan(plan)
            if kinds & {line.partition(":")[0] for line in smaller.findings}:
                outcome = smaller
                break
            if runs_max <= 0:
                return outcome
        else:
            return outcome
    return outcome


def counted(seed: str, settings: str = PLAIN) -> Outcome:
    """A run without strikes: how many events of each kind it has, and where each name is met first. It has to
    be sound. It looks as seldom as those that are struck, whose beginning it is."""
    outcome = run_plan(Plan(seed, settings=settings, ends=SOON))
    assert not outcome.findings, outcome.findings
    return outcome


def numbers(run: Outcome, kind: str, step: int) -> list[int]:
    """Every so-manieth event of the kind, and the first of each name."""
    firsts = [number for (one, _), number in run.first_points.items() if one == kind]
    return sorted({*range(1, run.counts[kind] + 1, step), *firsts})


def single_plans(
    seed: str,
    step: int = 1,
    settings: str = PLAIN,
    kinds: Sequence[str] = CHANGES,
    fates: Sequence[str] = FATES,
) -> Iterator[Plan]:
    """A cut at every disk write and every put and deletion with each fate, at every command with one, and a
    kill at every one; `step` takes every so-manieth, fates in turn. Once struck, the actors soon come to
    their end: what counts is how the node comes back."""
    run = counted(seed, settings)
    for kind in kinds:
        for number in numbers(run, kind, step):
            is_whole = step == 1 and kind != "command"
            chosen = fates if is_whole else [fates[number // step % len(fates)]]
            for fate in chosen:
                yield Plan(seed, (Strike(kind, number),), fate, settings=settings, ends=SOON)
            if step == 1 or number // step % 3 == 0:
                yield Plan(seed, (Strike(kind, number, "kill"),), settings=settings, ends=SOON)


def read_plans(seed: str, step: int, settings: str = PLAIN) -> Iterator[Plan]:
    """A cut or a kill at every read and listing: they change nothing, so one fate each."""
    for number in numbers(counted(seed, settings), "read", step):
        strike = Strike("read", number, "kill" if number % 3 == 0 else "cut")
        yield Plan(seed, (strike,), FATES[number % len(FATES)], settings=settings, ends=SOON)


def double_plans(
    seed: str, step: int = 1, settings: str = PLAIN, kinds: Sequence[str] = CHANGES
) -> Iterator[Plan]:
    """A cut or a kill at every so-manieth point, and a cut soon after, while the first is recovered from."""
    run = counted(seed, settings)
    turn, seconds = 0, itertools.cycle(SECOND_AFTER)
    for kind in kinds:
        for number in numbers(run, kind, step):
            turn += 1
            first = Strike(kind, number, "kill" if turn % 3 == 0 else "cut")
            for _ in range(3 if step == 1 and kind != "command" else 1):
                strikes = (first, Strike(kind, number + next(seconds)))
                yield Plan(seed, strikes, FATES[turn % len(FATES)], settings=settings, ends=SOON)


def weather_plans(seed: str, count: int) -> Iterator[Plan]:
    """So many runs of each rough weather, with none, one or two strikes."""
    counts = counted(seed).counts
    for weather in ROUGH_WEATHERS:
        for number in range(count):
            rand = Rand(f"{seed} {weather} {number}".encode())
            strikes = []
            for _ in range(rand.below(3)):
                kind = ("write", "store")[rand.below(2)]
                strikes.append(
                    Strike(kind, 1 + rand.below(counts[kind]), ("cut", "cut", "kill")[rand.below(3)])
                )
            yield Plan(f"{seed} {number}", tuple(strikes), FATES[rand.below(len(FATES))], weather)


def crash_plans(seed: str, step: int) -> Iterator[Plan]:
    """All of an enumeration: both kinds of log, and uploads in parts."""
    for settings in ENUMERATED:
        yield from single_plans(seed, step, settings)
        yield from double_plans(f"{seed} again", step, settings)
        yield from read_plans(seed, step, settings)
    yield from single_plans(seed, step, IN_PARTS, ("part",), PART_FATES)
    yield from double_plans(f"{seed} again", step, IN_PARTS, ("part",))
    yield from weather_plans(f"{seed} weather", 1 + 60 // step)


assert CALM not in WEATHERS
