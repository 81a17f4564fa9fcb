"""What a run is made of: a seed and a plan. The same two give the same run, to the last byte on the wire.

A plan is text and back (`str(plan)`, `parse_plan`), so that a finding can be handed to `python -m tests.sim
one`:

    seed=7 weather=rough store+slow disk fate=tear settings=small caches batches=6 cut@write90 kill@turn4711

`draw_plan` makes one of a seed: weather, settings, who takes part, what befalls the process and where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from millrace.runtime.rand import Rand

CALM, PLAIN, ALL = "calm", "plain", "all"
LATE, SOON = "late", "soon"  # when the actors come to their end
FATES = ("drop", "keep", "tear", "tear blocks", "holes", "any")
KINDS = ("write", "write", "crowd", "name", "store", "change", "command", "seldom", "promise", "turn", "turn")


@dataclass(frozen=True, slots=True)
class Strike:
    """Where, and what.

        write      a write of the disk
        crowd      a block of the WAL is written beside another
        again      a block of the WAL is written after an earlier strike
        lap        a block of the WAL is written over what the last trim freed
        name       a file is made, renamed or removed
        next       anything is written to the disk after an earlier strike
        store      a request sets out or takes effect
        change     the same, of puts and deletions alone
        part       the same, of uploads in parts alone
        read       the same, of reads and listings alone
        promise    a client hears that something other than a record is done: deleted, committed, made
        command    something is asked of the controller, or carried out
        seldom     the same, of what is asked a few times a run
        turn       a callback of the loop

    `number`: of that event, over all lives; `action`: cut (the power goes), kill (the process alone) or fail
    (that write fails: writes only).
    """

    kind: str
    number: int
    action: str = "cut"

    def __str__(self) -> str:
        return f"{self.action}@{self.kind}{self.number}"


@dataclass(frozen=True, slots=True)
class Plan:
    """`weather`, `settings` and `cast` are names joined with "+"; `batches`: a producer and partition.
    `ends`: whether actors do all of their share whatever happens, or soon come to their end once the node was
    struck."""

    seed: str = "0"
    strikes: tuple[Strike, ...] = ()
    fate: str = "any"
    weather: str = CALM
    settings: str = PLAIN
    cast: str = ALL
    batches: int = 12
    ends: str = LATE

    def __str__(self) -> str:
        words = [f"seed={self.seed}", f"weather={self.weather}", f"fate={self.fate}"]
        if self.settings != PLAIN:
            words.append(f"settings={self.settings}")
        if self.cast != ALL:
            words.append(f"cast={self.cast}")
        if self.batches != 12:
            words.append(f"batches={self.batches}")
        if self.ends != LATE:
            words.append(f"ends={self.ends}")
        return " ".join([*words, *map(str, self.strikes)])

    def weathers(self) -> list[str]:
        return self.weather.split("+")

    def smaller(self) -> Iterator[Plan]:
        """Plans with one thing less, the most disturbing first."""
        for index in range(len(self.strikes)):
            yield replace(self, strikes=self.strikes[:index] + self.strikes[index + 1 :])
        for weather in without_one(self.weather, CALM):
            yield replace(self, weather=weather)
        for settings in without_one(self.settings, PLAIN):
            yield replace(self, settings=settings)


def without_one(joined: str, nothing: str) -> list[str]:
    names = joined.split("+")
    if names == [nothing]:
        return []
    return ["+".join(names[:index] + names[index + 1 :]) or nothing for index in range(len(names))]


def parse_plan(text: str) -> Plan:
    """The inverse of str(plan)."""
    plan = Plan()
    values = {
        "seed": plan.seed,
        "fate": plan.fate,
        "weather": CALM,
        "settings": PLAIN,
        "cast": ALL,
        "batches": "12",
        "ends": LATE,
    }
    strikes: list[Strike] = []
    name = ""
    for word in text.split(" "):
        action, is_strike, point = word.partition("@")
        if is_strike:
            kind = point.rstrip("0123456789")
            strikes.append(Strike(kind, int(point[len(kind) :]), action))
        elif "=" in word:
            name, _, value = word.partition("=")
            assert name in values, f"no {name!r} in a plan"
            values[name] = value
        elif word:
            values[name] += f" {word}"
    batches = int(values.pop("batches"))
    return Plan(strikes=tuple(strikes), batches=batches, **values)


# How many of each event an ordinary run has: strikes are drawn among so many, and those beyond a run's end
# strike nobody.
EVENTS = {
    "write": 420,
    "crowd": 30,
    "again": 6,
    "lap": 30,
    "name": 24,
    "next": 12,
    "seldom": 8,
    "promise": 24,
    "store": 600,
    "change": 100,
    "command": 150,
    "turn": 11_000,
}


# Drawn apart, one in six, so that all else of a seed's plan is what it was; and what none of them bears
# beside it.
MISPLACED = ("older pair", "other wal", "other kind", "cloned")
NOT_BESIDE = (
    *("lost races", "replaced", "stray write", "salvage", "lost log", "wal rot"),
    *("older log", "older wal", "older bucket", "wrong bucket", "full disk"),
)
ONE_IN = 6
# The same, after those, one in 24: such a run has ten lives or more.
GIVEN_UP_TWICE = ("found wal", "same copy")
BY_CLOCK = (
    "wrong clock",
    "clock ahead",
    "clock back",
    "clock drift",
)  # by which a restore tells the age of a copy
TWICE_ONE_IN = 24

OBJECT_WALS = ("object wal", "quick object wal", "reserved object wal")


def draw_plan(seed: str, weathers: Sequence[str], settings: Sequence[str], cast: Sequence[str]) -> Plan:
    """What befalls the run of this seed, of the names there are."""
    rand = Rand(f"plan {seed}".encode())
    weathers = [name for name in weathers if name not in (*MISPLACED, *GIVEN_UP_TWICE)]
    misplaced, twice = Rand(f"misplaced {seed}".encode()), Rand(f"given up twice {seed}".encode())
    strikes = []
    for _ in range((0, 1, 1, 1, 2, 2, 3, 4)[rand.below(8)]):
        kind = KINDS[rand.below(len(KINDS))]
        action = (
            "kill"
            if kind == "name"
            else ("cut", "cut", "kill", "kill", "fail", "fail")[rand.below(6 if kind == "write" else 4)]
        )
        number = 1 + rand.below(EVENTS[kind])
        strikes.append(Strike(kind, number, action))
        if kind == "write" and rand.below(3) == 0:  # again, while it is recovered from
            strikes.append(Strike(kind, number + 1 + rand.below(40)))
        if kind == "name" and rand.below(3):  # names that changed and are not synced when the power goes
            strikes.append(Strike("next", 1 + rand.below(EVENTS["next"])))
        if kind == "crowd" and rand.below(3):  # again, when little was written where the hole was
            strikes.append(Strike("again", (1, 2, 2, 2, 3, 4)[rand.below(EVENTS["again"])]))
    weather = drawn(rand, weathers, (0, 1, 1, 2, 2, 3)[rand.below(6)])
    variants = drawn(rand, settings, rand.below(4))
    if "rough store" in weather and rand.below(2) and "small parts" not in variants:
        variants.append("small parts")  # what is put in parts meets every fault
    if "lost races" in weather and not {"object wal", "quick object wal"} & set(variants):
        variants.append("object wal")  # the only one who puts on a condition
    elif "replaced" in weather and not {*OBJECT_WALS} & set(variants):
        variants.append(OBJECT_WALS[rand.below(3)])  # who can write on without its disk
    has_holes = any(strike.kind == "crowd" for strike in strikes) and rand.below(2)
    plan = Plan(
        seed,
        tuple(dict.fromkeys(strikes)),
        "holes" if has_holes else FATES[rand.below(len(FATES))],
        "+".join(weather) or CALM,
        "+".join(variants) or PLAIN,
        ALL if rand.below(2) else "+".join(drawn(rand, cast, len(cast) * 2 // 3)),
        4 + rand.below(10),
    )
    if "small wal" in variants and not {*OBJECT_WALS} & set(variants):
        plan = with_laps(plan, rand)
    plan = plan if misplaced.below(ONE_IN) else with_misplaced(plan, misplaced)
    return plan if twice.below(TWICE_ONE_IN) else with_two_losses(plan, twice)


def with_misplaced(plan: Plan, rand: Rand) -> Plan:
    """Another of the three places, or two, stands where the node's own was."""
    kept = [name for name in plan.weathers() if name not in (CALM, *NOT_BESIDE)]
    return replace(plan, weather="+".join([*kept, MISPLACED[rand.below(len(MISPLACED))]]))


def with_two_losses(plan: Plan, rand: Rand) -> Plan:
    """Records are given up, and others at the same offsets after them."""
    others = (CALM, *NOT_BESIDE, *MISPLACED, *BY_CLOCK)
    kept = [name for name in plan.weathers() if name not in others]
    return replace(plan, weather="+".join([*kept, GIVEN_UP_TWICE[rand.below(len(GIVEN_UP_TWICE))]]))


def with_laps(plan: Plan, rand: Rand) -> Plan:
    """The log is filled, trimmed and filled again, and struck where it takes what was freed; half the time it
    is damaged at that start."""
    strike = Strike("lap", 1 + rand.below(EVENTS["lap"]), ("cut", "cut", "kill")[rand.below(3)])
    weathers = dict.fromkeys((*plan.weathers(), *["wal rot"] * rand.below(2)))
    return replace(
        plan,
        strikes=(*plan.strikes, strike),
        weather="+".join(name for name in weathers if name != CALM) or CALM,
        settings=f"{plan.settings}+large uploads",
        batches=45 + rand.below(20),
    )


def drawn(rand: Rand, names: Sequence[str], count: int) -> list[str]:
    """So many different ones, in their own order."""
    left = list(names)
    for _ in range(len(names) - count):
        left.pop(rand.below(len(left)))
    return left
