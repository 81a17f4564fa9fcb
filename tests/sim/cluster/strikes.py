"""Strikes: a process is killed, or its machine loses power, at an await: so many steps of the loop after it
began something, which a plan draws.

    kill@recovery2+17     as the second recovery of a log in this run has come 17 callbacks of its process far
    cut-tear@seal9+3      likewise, and of what was not durable each sector survives or not

The steps are those of the whole process, so that what runs beside the operation is struck as well. The
machine is started again after a while. While a voter without its past catches up, the others are spared
(docs/quorum.md); so is who is not there any more. Not here: what is drawn besides (plan.py), trouble at
timers (trouble.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from millrace.broker.app import Broker
from millrace.broker.background.object_cleaner import ObjectCleaner
from millrace.broker.controller_client import ControllerClient
from millrace.broker.identity.claims import Claimant
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.quorum.failovers import Failovers
from millrace.broker.quorum.log_recovery import LogRecovery
from millrace.broker.quorum.process import ControllerProcess
from millrace.kraft.bucket.writer import MetadataBackup
from millrace.runtime.rand import Rand
from millrace.s3stream.storage import Storage
from millrace.s3stream.uploader import Uploader
from tests.sim.cluster.machine import Machine
from tests.sim.loop import LIFE, Life
from tests.sim.world import World

Place = tuple[Any, str, Callable[[Any], Any]]
KILL, CUTS = "kill", ("drop", "keep", "tear", "any")
STEPS_BITS = 10  # a strike comes within so many bits of steps, early ones as often as late ones

# What begins where, and how many of each a run has about, over all nodes.
OPERATIONS: dict[str, tuple[int, tuple[tuple[Any, str], ...]]] = {
    "start": (12, ((Broker, "start"), (ControllerProcess, "start"))),
    "stop": (2, ((Broker, "stop"), (ControllerProcess, "stop"))),
    "open": (20, ((PartitionDirectory, "_open_streams"),)),
    "seal": (8, ((Storage, "seal_stream"),)),
    "close": (8, ((Storage, "close_stream"),)),
    "upload": (80, ((Uploader, "_commit"),)),
    "recovery": (2, ((LogRecovery, "run"),)),
    "look": (3, ((LogRecovery, "find"),)),
    "end of a recovery": (2, ((Failovers, "_end"),)),
    "claim": (8, ((Claimant, "claim"),)),
    "register": (8, ((ControllerClient, "register_wal"),)),
    "accept": (1, ((ControllerClient, "accept_wal_loss"),)),
    "metadata": (12, ((MetadataBackup, "_save"),)),
    "delete": (6, ((ObjectCleaner, "_delete"),)),
}


@dataclass(frozen=True, slots=True)
class Strike:
    """`fate`: of what was not durable, where the power goes; "" where the process alone ends."""

    operation: str
    number: int
    steps: int
    fate: str = ""

    def __str__(self) -> str:
        action = f"cut-{self.fate}" if self.fate else KILL
        return f"{action}@{self.operation.replace(' ', '-')}{self.number}+{self.steps}"


def draw_strikes(rand: Rand, count: int) -> tuple[Strike, ...]:
    names = list(OPERATIONS)
    found: dict[tuple[str, int], Strike] = {}
    for _ in range(count):
        name = names[rand.below(len(names))]
        number = 1 + rand.below(OPERATIONS[name][0])
        steps = rand.below(1 << (1 + rand.below(STEPS_BITS)))
        fate = CUTS[rand.below(len(CUTS))] if rand.below(2) else ""
        found[name, number] = Strike(name, number, steps, fate)
    return tuple(found.values())


class Strikes:
    """From `watched` on what begins is counted; until `end` strikes come. `are_spared` is asked of each
    machine."""

    def __init__(
        self,
        world: World,
        machines: Sequence[Machine],
        strikes: Sequence[Strike],
        are_spared: Callable[[Machine], bool],
    ) -> None:
        self._world = world
        self._machines = machines
        self._planned = {(one.operation, one.number): one for one in strikes}
        self._are_spared = are_spared
        self._rand = world.rand.split("strikes")
        self._begun: Counter[str] = Counter()
        self._away: list[asyncio.Task[None]] = []
        self.is_over = False

    def watched(self) -> list[Place]:
        """What stands in the place of the functions that begin something (tests.sim.bugs.in_place)."""

        def make(operation: str, begin: Any) -> Any:
            def begun(*args: Any, **keys: Any) -> Any:
                self._on_begun(operation)
                return begin(*args, **keys)

            return begun

        names = dict.fromkeys(name for name, _ in self._planned)
        return [
            (owner, function, partial(make, name))
            for name in names
            for owner, function in OPERATIONS[name][1]
        ]

    async def end(self) -> None:
        """None comes any more; on return who was struck is wanted again."""
        self.is_over = True
        await asyncio.gather(*self._away)

    def _on_begun(self, operation: str) -> None:
        self._begun[operation] += 1
        strike = self._planned.pop((operation, self._begun[operation]), None)
        life = LIFE.get()
        if strike is None or life is None or self.is_over:
            return
        self._world.loop.strike_in(life, strike.steps, partial(self._strike, strike, life))

    def _strike(self, strike: Strike, life: Life) -> None:
        machine = next((one for one in self._machines if one.life is life), None)
        if machine is None or self.is_over or self._are_spared(machine):
            self._world.hits["strike: came to nothing"] += 1
            return
        self._world.trace.note("strike", strike, machine.name)
        self._world.hits[f"struck: {strike.operation}"] += 1
        machine.is_struck = True
        machine.kill(strike.fate)
        self._away.append(self._world.loop.create_task(self._stay_away(machine)))

    async def _stay_away(self, machine: Machine) -> None:
        """For a moment, or for long enough to be gone."""
        long_ms = 4_000 + self._rand.below(6_000)
        await asyncio.sleep((long_ms if self._rand.below(3) == 0 else self._rand.below(1_500)) / 1000)
        machine.is_struck = False
        machine.wake()
