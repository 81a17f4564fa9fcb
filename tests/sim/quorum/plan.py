"""What a run of a quorum is made of, as text and back: `python -m tests.sim quorum one PLAN` repeats it.

    seed=7 voters=3 observers=1 weather=losses+freezes settings=small storm=9 cut@2.append17 kill@1.turn4711

`draw_plan` makes one of a seed: how many nodes, weather, settings, what befalls which node and where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from millrace.runtime.rand import Rand
from tests.sim.plan import CALM, FATES, drawn, without_one

WHOEVER = 0
# How many of each event a node of an ordinary run has, over its lives, or all of them together: strikes are
# drawn among so many.
EVENTS = {"write": 700, "append": 180, "sync": 180, "turn": 9_000}
EVENTS_OF_ALL = {"state": 40, "truncate": 3, "snapshot": 120, "install": 20, "restart": 4, "trim": 50}
KINDS = (*EVENTS, *EVENTS_OF_ALL, "state", "truncate", "truncate", "install", "install", "restart", "restart")


@dataclass(frozen=True, slots=True)
class Strike:
    """At a node, over its lives, or at whoever comes to it (WHOEVER): which event of a kind, and what happens
    there.

        write       anything is written to its disk
        state       the quorum-state file
        append      a batch of the log
        sync        the log
        truncate    the log is cut
        snapshot    the file of a snapshot of its own is written, or gets its name
        install     the same of one that comes from the leader
        restart     the log makes room for an installed snapshot
        trim        a segment goes that a snapshot made superfluous
        turn        a callback of the loop, whoever's it is

    `action`: cut (the power goes), kill (the process alone) or fail (that write fails).
    """

    node_id: int
    kind: str
    number: int
    action: str = "cut"

    def __str__(self) -> str:
        return f"{self.action}@{self.node_id}.{self.kind}{self.number}"


@dataclass(frozen=True, slots=True)
class Plan:
    """`weather` and `settings` are names joined with "+"; `storm_s`: seconds until all faults end.
    `is_dynamic`: the voters are those that the log begins with, and others come and go."""

    seed: str = "0"
    voters: int = 3
    observers: int = 0
    weather: str = CALM
    settings: str = CALM
    fate: str = "any"
    storm_s: int = 8
    strikes: tuple[Strike, ...] = ()
    is_dynamic: bool = False

    def __str__(self) -> str:
        words = [
            f"seed={self.seed} voters={self.voters} observers={self.observers} weather={self.weather}",
            f"settings={self.settings} fate={self.fate} storm={self.storm_s}",
        ]
        words += ["dynamic=1"] * self.is_dynamic
        return " ".join([*words, *map(str, self.strikes)])

    def weathers(self) -> list[str]:
        return [name for name in self.weather.split("+") if name != CALM]

    def variants(self) -> list[str]:
        return [name for name in self.settings.split("+") if name != CALM]

    @property
    def voter_ids(self) -> tuple[int, ...]:
        return tuple(range(1, self.voters + 1))

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(range(1, self.voters + self.observers + 1))

    def smaller(self) -> Iterator[Plan]:
        """Plans with one thing less, the most disturbing first."""
        for index in range(len(self.strikes)):
            yield replace(self, strikes=self.strikes[:index] + self.strikes[index + 1 :])
        for weather in without_one(self.weather, CALM):
            yield replace(self, weather=weather)
        for settings in without_one(self.settings, CALM):
            yield replace(self, settings=settings)
        if self.observers:
            yield replace(self, observers=self.observers - 1)


def parse_plan(text: str) -> Plan:
    """The inverse of str(plan)."""
    values: dict[str, str] = {}
    strikes: list[Strike] = []
    name = ""
    for word in text.split(" "):
        action, is_strike, place = word.partition("@")
        if is_strike:
            node_id, _, point = place.partition(".")
            kind = point.rstrip("0123456789")
            strikes.append(Strike(int(node_id), kind, int(point[len(kind) :]), action))
        elif "=" in word:
            name, _, value = word.partition("=")
            values[name] = value
        elif word:
            values[name] += f" {word}"
    counts = {name: int(values.pop(name, default)) for name, default in (("voters", 3), ("observers", 0))}
    storm_s, is_dynamic = int(values.pop("storm", 8)), values.pop("dynamic", "0") == "1"
    plan = Plan(strikes=tuple(strikes), storm_s=storm_s, **counts, **values)  # type: ignore[arg-type]
    return replace(plan, is_dynamic=is_dynamic)


def draw_plan(seed: str, weathers: Sequence[str], settings: Sequence[str]) -> Plan:
    rand = Rand(f"quorum plan {seed}".encode())
    voters, observers = (3, 3, 5)[rand.below(3)], (0, 0, 1, 1, 2)[rand.below(5)]
    strikes = []
    for _ in range((0, 1, 1, 2, 2, 3, 4, 6)[rand.below(8)]):
        kind = KINDS[rand.below(len(KINDS))]
        actions = ("cut", "cut", "kill", "kill", "fail") if kind != "turn" else ("cut", "kill")
        action = actions[rand.below(len(actions))]
        number = 1 + rand.below(EVENTS.get(kind) or EVENTS_OF_ALL[kind])
        node_id = 1 + rand.below(voters + observers) if kind in EVENTS else WHOEVER
        strikes.append(Strike(node_id, kind, number, action))
    weather = drawn(rand, weathers, (1, 1, 2, 2, 3, 4)[rand.below(6)])
    variants = drawn(rand, settings, (0, 1, 1, 2)[rand.below(4)])
    return Plan(
        seed,
        voters,
        observers,
        "+".join(weather) or CALM,
        "+".join(variants) or CALM,
        FATES[rand.below(len(FATES))],
        5 + rand.below(6),
        tuple(dict.fromkeys(strikes)),
    )
