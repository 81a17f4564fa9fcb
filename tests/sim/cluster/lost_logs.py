"""LostLogs: a broker is killed, and its write-ahead log of blocks is not where it was.

    out of reach    for a while; then it is there again, and its broker comes back, or others recover it
    given up        an operator gives up what only it held: an unclean election of each partition that waits
                    for the broker (`millrace cluster give-up`); that one comes back later, with an empty log,
                    or with the one that was lost
    accepted        its broker is started with `wal.lost.accept`; now and then the log is there by then, and
                    nothing may be missing for all that word

Before that the broker may be started without its log, which has to be refused where it has streams open, and
to change nothing. What may be missing afterwards is worked out in given_up.py. Not here: logs of objects,
which are as safe as the bucket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from millrace.kraft.commands.failovers import waiting_nodes
from millrace.kraft.commands.partitions import UNCLEAN
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millrace.runtime.errors import Unavailable
from tests.sim.cluster.client import ClusterClient
from tests.sim.cluster.given_up import GivenUp
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.trouble import AWAY, FATES, Trouble
from tests.sim.disk import SimFile
from tests.sim.history import History
from tests.sim.node import QUIET
from tests.sim.world import World

OUT_OF_REACH, GIVE_UP, ACCEPT = WAYS = ("out of reach", "given up", "accepted")
ASK_AGAIN_S = 0.5
DONE_S = 150.0  # for a log to be given up, or a broker to serve; sooner, once trouble is over
PARTITIONS_MAX = 64  # more than there are
REFUSED_S = 8.0  # for a start to come to its refusal


class LostLogs:
    """`newest`: the image of whoever knows most."""

    def __init__(
        self,
        world: World,
        history: History,
        trouble: Trouble,
        admin: ClusterClient,
        given_up: GivenUp,
        newest: Callable[[], MetadataImage | None],
    ) -> None:
        self._world = world
        self._history = history
        self._trouble = trouble
        self._brokers = trouble.brokers
        self._admin = admin
        self._given_up = given_up
        self._newest = newest
        self._rand = world.rand.split("lost logs")
        self._rand_of_words = world.rand.split("words too many")

    async def make(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep((2_000 + self._rand.below(8_000)) / 1000)
            way = WAYS[self._rand.below(len(WAYS))]
            machine = self._found()
            if machine is not None:
                with self._trouble.held(machine):
                    await self._lose(machine, way)

    def _found(self) -> Machine | None:
        """A broker that serves, and whose log nobody else has come to open."""
        image = self._newest()
        free = (
            [] if image is None else [one for one in self._trouble.free_brokers() if self._serves(image, one)]
        )
        return free[self._rand.below(len(free))] if free else None

    def _serves(self, image: MetadataImage, machine: Machine) -> bool:
        broker = image.brokers.get(machine.node_id)
        is_there = broker is not None and not broker.is_fenced
        return machine.is_ready and is_there and image.failovers.get(machine.node_id) is None

    async def _lose(self, machine: Machine, way: str) -> None:
        if self._rand.below(3):
            await self._let_owe(machine)
        fates = ("", *FATES)
        machine.is_wanted = False
        machine.kill(fates[self._rand.below(len(fates))])
        machine.set_faults(QUIET)
        log = machine.take_log()
        image = self._newest()
        if image is not None:
            self._given_up.miss(machine.node_id, image)
        self._world.hits[f"log lost: {way}"] += 1
        self._world.trace.note("log lost", machine.name, way)
        if self._rand.below(2):
            await self._start_without(machine)
        if way == OUT_OF_REACH:
            await self._stay_out_of_reach(machine, log)
        elif way == GIVE_UP:
            await self._give_up(machine, log)
        else:
            await self._accept(machine, log)

    async def _let_owe(self, machine: Machine) -> None:
        """It leads some partitions while its store is away, and gives one of them on: what only its log
        holds."""
        machine.set_faults(AWAY)
        others = [one for one in self._brokers if one is not machine]
        first = self._rand.below(PARTITIONS_MAX)
        for index in range(first, first + 2):
            await self._trouble.give(index % self._trouble.partitions, machine)
        await asyncio.sleep((300 + self._rand.below(1_500)) / 1000)
        await self._trouble.give(first % self._trouble.partitions, others[self._rand.below(len(others))])
        await asyncio.sleep(self._rand.below(800) / 1000)

    async def _start_without(self, machine: Machine) -> None:
        """Nothing says that its streams are not in the log that it had."""
        refusals, machine.is_log_lost = machine.refusals, True
        machine.is_wanted = True
        machine.wake()
        await self._until(lambda: machine.refusals > refusals or machine.is_ready, REFUSED_S)
        machine.is_wanted = False
        image = self._newest()
        if machine.refusals > refusals:
            self._world.hits["log lost: the start was refused"] += 1
            if machine.has_log():
                self._history.find("refused-and-changed", f"{machine.name} has made a log")
        elif machine.is_ready and image is not None and image.streams.are_in_log_of(machine.node_id):
            self._history.find("served-without-log", f"{machine.name}, which has streams open")
        machine.kill()
        machine.is_log_lost = False

    async def _stay_out_of_reach(self, machine: Machine, log: SimFile) -> None:
        await asyncio.sleep((500 + self._rand.below((2_000, 20_000)[self._rand.below(2)])) / 1000)
        self._given_up.found(machine.node_id)
        machine.put_log(log)
        if self._rand.below(2) and machine.is_log_shared:
            is_done = await self._until(lambda: not self._is_held(machine), DONE_S)
            self._world.hits["log lost: in reach again, and recovered by another"] += is_done
        else:
            self._world.hits["log lost: in reach again, and its broker came back"] += self._is_held(machine)
        self._back(machine)

    async def _give_up(self, machine: Machine, log: SimFile) -> None:
        """Once nobody is left who might reach the log."""
        if not await self._until(lambda: self._waits(machine) or not self._is_held(machine), DONE_S):
            self._history.find("not-given-up", f"nobody waits for {machine.name}")
        image = self._newest()
        self._given_up.begin(machine.node_id, GIVE_UP, image or EMPTY_IMAGE)
        deadline_s = self._world.loop.time() + DONE_S
        while self._is_held(machine):
            if self._world.loop.time() > deadline_s:
                self._history.find("not-given-up", f"the log of {machine.name}")
                break
            await self._ask(machine)
            await asyncio.sleep(ASK_AGAIN_S)
        self._given_up.end(machine.node_id)
        self._given_up.found(machine.node_id)
        await asyncio.sleep(self._rand.below(6_000) / 1000)
        if self._rand.below(2):
            self._world.hits["given up: the log came back"] += 1
            machine.put_log(log)
        self._back(machine)

    async def _ask(self, machine: Machine) -> None:
        """For each partition that waits for this broker, and for no other that is gone."""
        image = self._newest()
        asked: dict[str, list[int]] = {}
        for name, index in [] if image is None else waiting_for(image, machine.node_id):
            asked.setdefault(name, []).append(index)
        request = ElectLeadersRequest(UNCLEAN, [TopicPartitions(*one) for one in asked.items()])
        try:
            answer: Any = await self._admin.ask(43, request, timeout_s=5)
        except Unavailable:
            return  # it may have been done
        codes = [
            one.error_code for topic in answer.replica_election_results for one in topic.partition_result
        ]
        self._world.hits["give-up: refused for now"] += any(codes)

    async def _accept(self, machine: Machine, log: SimFile) -> None:
        image = self._newest()
        if self._rand_of_words.below(3) == 2 and not machine.has_log():
            self._given_up.found(machine.node_id)
            machine.put_log(log)
            machine.is_loss_accepted = True
            self._world.hits[f"log lost: {ACCEPT}, and it was there"] += 1
        elif image is not None:
            self._given_up.begin(machine.node_id, ACCEPT, image)
            machine.is_loss_accepted = True
        self._back(machine)
        await self._until(lambda: machine.is_ready, DONE_S)
        machine.is_loss_accepted = False
        self._given_up.end(machine.node_id)
        self._given_up.found(machine.node_id)

    def _back(self, machine: Machine) -> None:
        machine.is_wanted = True
        machine.wake()

    def _waits(self, machine: Machine) -> bool:
        image = self._newest()
        return image is not None and machine.node_id in waiting_nodes(image)

    def _is_held(self, machine: Machine) -> bool:
        image = self._newest()
        return image is None or image.streams.are_in_log_of(machine.node_id)

    async def _until(self, is_so: Callable[[], bool], bound_s: float) -> bool:
        deadline_s = self._world.loop.time() + bound_s
        while not is_so():
            if self._world.loop.time() > deadline_s:
                return False
            await asyncio.sleep(0.1)
        return True


def waiting_for(image: MetadataImage, node_id: int) -> list[tuple[str, int]]:
    """Partitions whose records are in the log of this broker, and of no other one that is gone."""
    found = []
    for topic in image.topics:
        for index in range(len(topic.partitions)):
            streams = image.streams.of_partition(topic.topic_id, index)
            holders = {one.node_id for one in streams if one.is_open}
            holders |= {
                owed.node_id for one in streams for owed in image.streams.owed.of_stream(one.stream_id)
            }
            gone = {one for one in holders if one == node_id or image.brokers.by_id[one].is_fenced}
            if gone == {node_id} and node_id in holders:
                found.append((topic.name, index))
    return found
