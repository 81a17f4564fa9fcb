"""Which plans are run: every point of a run, each with a fate, and again with a second strike during the recovery from the first.

The points are those of a run without strikes, which is counted first. A run that was struck goes its own way from there on, so a second
strike is planned some events after the first, wherever that falls. Bad weather is run with strikes at points drawn from the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from millrace.runtime.rand import Rand
from tests.sim.node import FATES
from tests.sim.run import Outcome, Plan, Strike, run_plan
from tests.sim.weather import WEATHERS

SECOND_AFTER = (1, 4, 2, 7, 11, 5, 16, 9, 22, 13, 29, 19, 37, 46)  # events, of the kind of the first
# What a full hunt must have met, in every one of these ways.
MUST_HIT = (
    "strike at a write",
    "strike at a store",
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
    *(f"weather: {weather}" for weather in WEATHERS),
)


@dataclass
class Tally:
    runs: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    looked_at: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.runs += 1
        self.hits += outcome.hits
        self.looked_at += outcome.looked_at
        if outcome.findings:
            self.failed.append(outcome)

    def missing(self) -> list[str]:
        """Faults and checkers that were never met."""
        return [name for name in (*MUST_HIT, *self.looked_at) if not self.hits[name] + self.looked_at[name]]


def weather_plans(seed: str, count: int) -> Iterator[Plan]:
    """So many runs of each weather but the calm, with none, one or two strikes."""
    counts = points(seed)
    for weather in WEATHERS[1:]:
        for number in range(count):
            rand = Rand(f"{seed} {weather} {number}".encode())
            strikes = []
            for _ in range(rand.below(3)):
                kind = ("write", "store")[rand.below(2)]
                strikes.append(Strike(kind, 1 + rand.below(counts[kind]), ("cut", "cut", "kill")[rand.below(3)]))
            yield Plan(f"{seed} {number}", tuple(strikes), FATES[rand.below(len(FATES))], weather)


def points(seed: str) -> Counter[str]:
    """How many events of each kind a run without strikes has. It has to be sound."""
    outcome = run_plan(Plan(seed))
    assert not outcome.findings, outcome.findings
    return outcome.counts


def single_plans(seed: str, fates: Sequence[str] = FATES, step: int = 1) -> Iterator[Plan]:
    """A cut at every write and store event with each fate, and a kill at every one; `step` takes every so-manieth, fates in turn."""
    counts = points(seed)
    for kind in ("write", "store"):
        for number in range(1, counts[kind] + 1, step):
            chosen = fates if step == 1 else [fates[number // step % len(fates)]]
            for fate in chosen:
                yield Plan(seed, (Strike(kind, number),), fate)
            if step == 1 or number // step % 3 == 0:
                yield Plan(seed, (Strike(kind, number, "kill"),))


def double_plans(seed: str, step: int = 1) -> Iterator[Plan]:
    """A cut or a kill at every so-manieth point, and a cut soon after, while the first is recovered from."""
    counts = points(seed)
    turn = 0
    for kind in ("write", "store"):
        for number in range(1, counts[kind] + 1, step):
            for _ in range(3 if step == 1 else 1):
                after = SECOND_AFTER[turn % len(SECOND_AFTER)]
                first = Strike(kind, number, "kill" if turn % 3 == 0 else "cut")
                yield Plan(seed, (first, Strike(kind, number + after)), FATES[turn % len(FATES)])
                turn += 1
