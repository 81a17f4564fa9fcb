"""Trouble: what is done to the machines of a cluster while clients use it, drawn from the run's Rand.

    kill, power cut     the process is gone, and started again after a while, or only at the end
    stop                in order, and started again; or all of them at once
    halt                nothing of the process runs for some seconds: it is SIGSTOPped, or its machine is
    cut off             from the controllers, from all others, or one way alone
    move                partitions are given to other brokers, by AlterPartitionReassignments; also to one
                        whose store is slow, and on from there before it has uploaded what it was given;
                        that one may be killed then
    store               the bucket answers late, not at all, or with errors; or one machine does not reach it
                        for up to 45 s, while all others do

Of some plans besides (`add_set_clocks`, `add_lost_disks`):

    set clock           a machine's wall clock is set ahead or back, by up to a year, and perhaps right again
    lose disk           a machine's log directory is gone, and it starts without; a voter's while all others
                        are up, know all that is committed, and have a leader (docs/quorum.md)

Of logs that are fenced by claims besides (`add_of_claims`):

    slow writes         what a machine writes to the shared disk lands seconds late
    replaced            a process stands still, or is cut off from the controllers, until others recover its
                        log; it goes on, and its successor in the log is killed soon after it began to serve

One thing at a time and machine; machines are in trouble side by side. When it ends, all is healed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence

from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.runtime.errors import Unavailable
from millrace.runtime.rand import Rand
from tests.sim.cluster.client import ClusterClient
from tests.sim.cluster.machine import Machine
from tests.sim.loop import Life
from tests.sim.node import QUIET
from tests.sim.objectstore import StoreFaults
from tests.sim.world import World

FATES = ("drop", "keep", "tear", "any")
WEATHERS = (
    StoreFaults(refused=60, throttled=40, lost_answer=40, latency_ms=(1, 60), timeout_ms=500),
    StoreFaults(
        lost_request=80, lost_answer=80, late=40, latency_ms=(1, 30), timeout_ms=400, late_ms=(0, 5_000)
    ),
    StoreFaults(latency_ms=(40, 400), timeout_ms=2_000),
)

AWAY = StoreFaults(lost_request=1_000, timeout_ms=500)
SET_MS = (3_600_000, 3 * 86_400_000, 400 * 86_400_000)  # by which clocks are set
WAITS = 300  # tenths of a second


def watermark(machine: Machine) -> int:
    """What it knows to be committed; 0 where it is down."""
    return 0 if machine.controller is None else machine.controller.driver.raft.high_watermark


def do_know(voters: Sequence[Machine], committed: int) -> bool:
    """Whether one of them leads, and all have what is committed."""
    up = [one.controller for one in voters if one.controller is not None]
    is_led = any(one.driver.raft.is_leader for one in up)
    return is_led and all(watermark(one) >= committed for one in voters)


class Trouble:
    """`topic`: whose `partitions` are moved."""

    def __init__(
        self,
        world: World,
        controllers: Sequence[Machine],
        brokers: Sequence[Machine],
        admin: ClusterClient,
        topic: str,
        partitions: int,
    ) -> None:
        self._world = world
        self._controllers = controllers
        self.brokers = brokers
        self._admin = admin
        self._topic = topic
        self.partitions = partitions
        self._rand: Rand = world.rand.split("trouble")
        self._busy: list[Machine] = []
        self.spared: list[Machine] = []  # while a voter without its past catches up
        self._is_frozen = False
        self._further: Rand = world.rand.split("further moves")
        self._kinds: tuple[Callable[[Machine], Awaitable[None]], ...] = (
            self._kill, self._kill, self._cut, self._stop, self._halt, self._cut_off, self._move, self._move,
            self._weather, self._stop_all, self._cut_from_bucket,
        )  # fmt: skip
        self._of_claims: tuple[Callable[[Machine], Awaitable[None]], ...] = (
            self._slow_writes, self._slow_writes, self._replaced, self._replaced, self._replaced,
        )  # fmt: skip

    def add_set_clocks(self) -> None:
        self._kinds += (self._set_clock, self._set_clock)

    def add_lost_disks(self) -> None:
        self._kinds += (self._lose_disk, self._lose_disk)

    def add_of_claims(self) -> None:
        self._kinds += self._of_claims

    def keep_to(self, kinds: str) -> None:
        """No others: `claims`, what logs that are fenced by claims are there for; `owed`, brokers that are
        killed while their logs owe what has just moved away."""
        self._kinds = {"claims": self._of_claims, "owed": (self._owe,)}[kinds]

    async def make(self, count: int) -> None:
        """So many things, then all is healed."""
        under_way = []
        for _ in range(count):
            await asyncio.sleep(self._rand.below(4_000) / 1000)
            under_way.append(asyncio.ensure_future(self._one()))
        await asyncio.gather(*under_way)
        self._world.net.heal()
        self._world.trace.note("trouble", "over")

    async def _one(self) -> None:
        rand = self._rand
        free = [one for one in (*self.brokers, *self.brokers, *self._controllers) if one not in self._busy]
        kind = self._kinds[rand.below(len(self._kinds))]
        if not free:
            return
        machine = free[rand.below(len(free))]
        is_away = kind in (
            self._cut, self._kill, self._stop, self._halt, self._cut_off, self._replaced, self._owe,
        )  # fmt: skip
        if is_away and not self._leaves_majority(machine):
            return
        self._busy.append(machine)
        self._world.trace.note("trouble", kind.__name__, machine.name)
        try:
            await kind(machine)
        finally:
            self._busy.remove(machine)

    def free_brokers(self) -> list[Machine]:
        """That are in no trouble, and without whom a majority of the controllers stays."""
        return [one for one in self.brokers if one not in self._busy and self._leaves_majority(one)]

    @contextlib.contextmanager
    def held(self, machine: Machine) -> Iterator[None]:
        """It is in a trouble of another kind."""
        self._busy.append(machine)
        try:
            yield
        finally:
            self._busy.remove(machine)

    def _leaves_majority(self, machine: Machine) -> bool:
        gone = [one for one in self._busy if one in self._controllers]
        return machine not in self._controllers or 2 * (len(gone) + 1) < len(self._controllers)

    def _hit(self, what: str, machine: Machine) -> None:
        roles = (("controller", self._controllers), ("broker", self.brokers))
        role = " and ".join(name for name, machines in roles if machine in machines)
        self._world.hits[f"{what} of a {role}"] += 1

    async def _away(self, machine: Machine) -> None:
        """For a moment, or for long enough to be gone."""
        machine.is_wanted = False
        await asyncio.sleep(
            (self._rand.below(1_500) if self._rand.below(2) else 4_000 + self._rand.below(9_000)) / 1000
        )
        machine.is_wanted = True
        machine.wake()

    async def _kill(self, machine: Machine) -> None:
        self._hit("kill", machine)
        machine.is_wanted = False
        machine.kill()
        await self._away(machine)

    async def _cut(self, machine: Machine) -> None:
        self._hit("power cut", machine)
        machine.is_wanted = False
        machine.kill(FATES[self._rand.below(len(FATES))])
        await self._away(machine)

    async def _stop(self, machine: Machine) -> None:
        self._hit("stop", machine)
        machine.is_wanted = False
        await machine.stop()
        await self._away(machine)

    async def _stop_all(self, machine: Machine) -> None:
        """Nobody is there who takes over from another."""
        everybody = list(dict.fromkeys((*self.brokers, *self._controllers)))
        others = [one for one in everybody if one is not machine]
        if any(one in self._busy for one in others):
            return
        self._world.hits["stop of all"] += 1
        self._busy += others
        for one in everybody:
            one.is_wanted = False
        await asyncio.gather(*(one.stop() for one in everybody))
        await asyncio.gather(*(self._away(one) for one in everybody))
        self._busy = [one for one in self._busy if one not in others]

    async def _halt(self, machine: Machine) -> None:
        if machine.life is None or self._is_frozen:
            return
        self._hit("halt", machine)
        life = machine.life
        self._is_frozen = True
        self._world.loop.freeze(life)
        await asyncio.sleep((500 + self._rand.below(12_000)) / 1000)
        if not life.is_over:
            self._world.loop.thaw()
        self._is_frozen = False

    async def _cut_off(self, machine: Machine) -> None:
        self._hit("cut off", machine)
        net, others = self._world.net, [*self._controllers, *self.brokers]
        if self._rand.below(2):
            others = list(self._controllers)
        ways = 1 + self._rand.below(3)
        pairs = [(machine.host, one.host) for one in others if one is not machine] if ways & 1 else []
        pairs += [(one.host, machine.host) for one in others if one is not machine] if ways & 2 else []
        for pair in pairs:
            net.sever(*pair)
        await asyncio.sleep((500 + self._rand.below(9_000)) / 1000)
        for pair in pairs:
            net.severed.pop(pair, None)
        for end in list(net.ends.values()):
            end.arrive()

    async def _move(self, machine: Machine) -> None:
        index, target = (
            self._rand.below(self.partitions),
            self.brokers[self._rand.below(len(self.brokers))],
        )
        await self.give(index, target)
        if machine in self.brokers and self._further.below(2):
            machine.set_faults(WEATHERS[-1])
            await self.give(index, machine)
            is_killed = machine not in self._controllers and self._further.below(2)
            for _ in range(1 if is_killed else 3):
                await asyncio.sleep((200 + self._further.below(800)) / 1000)
                await self.give(index, self.brokers[self._further.below(len(self.brokers))])
            if is_killed:
                await asyncio.sleep(self._further.below(150) / 1000)
                await self._kill(machine)
            machine.set_faults(QUIET)

    async def _owe(self, machine: Machine) -> None:
        """It is given a partition while its store is away, leads it for a moment, and is killed soon after
        another has taken it."""
        if machine not in self.brokers:
            return
        index, others = (
            self._rand.below(self.partitions),
            [one for one in self.brokers if one is not machine],
        )
        await self.give(index, machine)
        machine.set_faults(AWAY)
        await asyncio.sleep((500 + self._rand.below(1_500)) / 1000)
        await self.give(index, others[self._rand.below(len(others))])
        await asyncio.sleep(self._rand.below(1_500) / 1000)
        if self._rand.below(2):
            await self._kill(machine)
        machine.set_faults(QUIET)

    async def give(self, index: int, target: Machine) -> None:
        asked = [ReassignableTopic(self._topic, [ReassignablePartition(index, [target.node_id])])]
        try:
            answer = await self._admin.ask(45, AlterPartitionReassignmentsRequest(topics=asked), timeout_s=5)
        except Unavailable:
            return
        codes = [
            one.error_code for topic in answer.responses for one in topic.partitions
        ]  # none: refused whole
        self._world.hits["partition moved"] += codes == [0]

    async def _cut_from_bucket(self, machine: Machine) -> None:
        self._hit("cut from the bucket", machine)
        machine.set_faults(AWAY)
        await asyncio.sleep((5_000 + self._rand.below(40_000)) / 1000)
        machine.set_faults(QUIET)

    async def _set_clock(self, machine: Machine) -> None:
        self._hit("clock set", machine)
        by_ms = SET_MS[self._rand.below(len(SET_MS))] * (1 - 2 * self._rand.below(2))
        machine.clock.step(by_ms)
        await asyncio.sleep((1_000 + self._rand.below(10_000)) / 1000)
        if self._rand.below(2):
            machine.clock.step(-by_ms)

    async def _lose_disk(self, machine: Machine) -> None:
        others = [one for one in self._controllers if one is not machine]
        is_voter = machine in self._controllers
        if is_voter and (not others or any(one in self._busy or not one.is_ready for one in others)):
            return
        if is_voter:
            self._busy += others
            self.spared += others
        committed = max(map(watermark, self._controllers))
        machine.is_wanted = False
        machine.kill()
        if not is_voter or await self._until(lambda: do_know(others, committed)):
            self._hit("disk lost", machine)
            machine.lose_disk()
        await self._away(machine)
        if is_voter:
            await self._until(lambda: machine.is_ready and do_know([machine, *others], committed))
            self._busy = [one for one in self._busy if one not in others]
            self.spared = []

    async def _until(self, is_so: Callable[[], bool]) -> bool:
        for _ in range(WAITS):
            if is_so():
                return True
            await asyncio.sleep(0.1)
        return False

    async def _slow_writes(self, machine: Machine) -> None:
        self._hit("slow writes", machine)
        machine.set_slow(is_slow=True)
        await asyncio.sleep((2_000 + self._rand.below(10_000)) / 1000)
        machine.set_slow(is_slow=False)

    async def _replaced(self, machine: Machine) -> None:
        """Away for longer than a session, and perhaps for less than it takes it to notice."""
        life = machine.life
        if life is None or machine not in self.brokers:
            return
        machine.set_slow(is_slow=bool(self._rand.below(2)))
        away_s = (3_500 + self._rand.below(4_000)) / 1000
        if self._rand.below(2) and not self._is_frozen:
            self._hit("replaced while it stood still", machine)
            self._is_frozen = True
            self._world.loop.freeze(life)
            await asyncio.sleep(away_s)
            if not life.is_over:
                self._world.loop.thaw()
            self._is_frozen = False
        else:
            self._hit("replaced while it was cut off", machine)
            await self._severed([(machine, one) for one in self._controllers], away_s)
        await self._crash_next(machine, life)
        machine.set_slow(is_slow=False)

    async def _crash_next(self, machine: Machine, life: Life) -> None:
        """The life after this one, where it comes, once it has served for a moment."""
        for _ in range(40):
            await asyncio.sleep(0.25)
            if machine.life is not life and machine.is_ready:
                break
        else:
            return
        await asyncio.sleep(self._rand.below(3_000) / 1000)
        if machine.life is not None and machine.is_ready:
            self._hit("crash of who came after", machine)
            fates = ("", *FATES)
            machine.kill(fates[self._rand.below(len(fates))])

    async def _severed(self, pairs: Sequence[tuple[Machine, Machine]], for_s: float) -> None:
        """Both ways."""
        net = self._world.net
        hosts = [(one.host, other.host) for one, other in pairs if one is not other]
        hosts += [(other, one) for one, other in hosts]
        for pair in hosts:
            net.sever(*pair)
        await asyncio.sleep(for_s)
        for pair in hosts:
            net.severed.pop(pair, None)
        for end in list(net.ends.values()):
            end.arrive()

    async def _weather(self, machine: Machine) -> None:
        self._hit("store weather", machine)
        machine.set_faults(WEATHERS[self._rand.below(len(WEATHERS))])
        await asyncio.sleep((1_000 + self._rand.below(8_000)) / 1000)
        machine.set_faults(QUIET)
