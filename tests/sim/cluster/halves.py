"""Halves: the network falls in two, so that nobody in one hears anything of the other: controllers and
brokers mixed, clients on either side. The bucket, and a disk that all see, are reached from both.

    storm    now and then, for a second or for longer than a session, whoever is where
    quiet    once, for as long as it takes: the half with a majority of the controllers and a broker has to
             lead all whose logs it reaches, and to take writes to what it leads; clients write in the other
             half, too (`split`, asked by the run)

Not here: what must hold of what either half was told (checkers.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.sim.cluster.machine import Machine
from tests.sim.world import World

HALVES_TRIES = 4  # until there are brokers on either side
LONG_MS, SHORT_MS = 14_000, 3_000


class Halves:
    """`is_fenced`: whether the cluster takes this broker for gone. Everybody else than a machine is a client,
    which is drawn a half of as soon as it speaks."""

    def __init__(
        self,
        world: World,
        controllers: Sequence[Machine],
        brokers: Sequence[Machine],
        is_fenced: Callable[[Machine], bool],
    ) -> None:
        self._world = world
        self._controllers = controllers
        self._brokers = brokers
        self._machines = list(dict.fromkeys((*controllers, *brokers)))
        self._is_fenced = is_fenced
        self._rand = world.rand.split("halves")

    async def make(self, count: int) -> None:
        """So many times, one after the other; healed on return."""
        for _ in range(count):
            await asyncio.sleep(self._rand.below(8_000) / 1000)
            self.split(self._drawn())
            bound_ms = (SHORT_MS, LONG_MS)[self._rand.below(2)]
            await asyncio.sleep((500 + self._rand.below(bound_ms)) / 1000)
            self.heal()

    def _drawn(self) -> list[Machine]:
        here: list[Machine] = []
        for _ in range(HALVES_TRIES):
            here = [one for one in self._machines if self._rand.below(2)]
            if 0 < sum(one in here for one in self._brokers) < len(self._brokers):
                return here
        return here or self._machines[:1]

    def of_majority(self) -> tuple[list[Machine], list[Machine]]:
        """A half that can go on: a majority of the controllers, with a broker; and the other one, with one as
        well."""
        lesser: list[Machine] = []
        rooms = [
            (self._controllers, (len(self._controllers) - 1) // 2), (self._brokers, len(self._brokers) - 1)
        ]  # fmt: skip
        for one in sorted(self._machines, key=lambda one: self._rand.below(1_000)):
            has_broker = any(other in self._brokers for other in lesser)
            is_wanted = self._rand.below(2) or (one in self._brokers and not has_broker)
            counts = [(sum(other in all_ for other in lesser), room) for all_, room in rooms if one in all_]
            if is_wanted and all(count < room for count, room in counts):
                lesser.append(one)
        return [one for one in self._machines if one not in lesser], lesser

    def split(self, here: Sequence[Machine]) -> None:
        """Those, and all others; `heal` ends it."""
        sides = {one.host: int(one in here) for one in self._machines}

        def side_of(host: str) -> int:
            if host not in sides:
                sides[host] = self._rand.below(2)
            return sides[host]

        self._world.hits["split in halves"] += 1
        for name, machines in (("controllers", self._controllers), ("brokers", self._brokers)):
            is_mixed = len({sides[one.host] for one in machines}) == 2
            self._world.hits[f"split: {name} on either side"] += is_mixed
        self._world.trace.note("halves", *(one.name for one in here))
        self._world.net.side_of = side_of

    def put(self, client: str, side: int) -> None:
        """A client is in that half, 1 being the one that was named."""
        side_of = self._world.net.side_of
        assert side_of is not None
        self._world.net.side_of = lambda host: side if host == client else side_of(host)

    def heal(self) -> None:
        gone = [one for one in self._brokers if one.is_ready and self._is_fenced(one)]
        self._world.hits["split: a broker that runs was fenced"] += bool(gone)
        self._world.net.side_of = None
        self._world.trace.note("halves", "healed")
        self._world.net.wake()
