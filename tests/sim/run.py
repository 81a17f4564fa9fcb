"""One run: a node under a workload, struck where the plan says, brought up again each time, and looked at when all is quiet.

    storm    the actors of workload.py; a strike may come at any point of it, or of a recovery, or of a stop
    quiet    everything is read: from caches and whatever the last recovery left there
    stop     everything goes into objects, the WAL is emptied; a start with empty caches; everything is read again, from objects
    end      a last stop: metadata against its own log, the bucket and the streams' ranges

A run is its seed and its plan: the same ones give the same trace. Findings are what checkers say, what clients were told in
contradiction to earlier answers, processes that ended by themselves, exceptions that nobody took, and errors that were logged.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from millrace.kraft.log_store import LogStore
from millrace.kraft.node import ControllerNode, recover
from millrace.runtime.disk import DiskFull
from tests.sim import asking
from tests.sim.checkers import Found, all_checkers
from tests.sim.client import SimClient
from tests.sim.history import History, Place, TopicStory
from tests.sim.look import judge, look
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.members import Member
from tests.sim.node import SimNode, StartFailed
from tests.sim.weather import blow
from tests.sim.workload import Actor, Burst, Churner, Committer, Doubler, Idempotent, Plain, Reader, Trimmer
from tests.sim.world import World

A = TypeVar("A", bound=Actor)
DOWN_S = 0.05
LIMIT_S = 600.0
GRACE_S = 70.0  # longer than doomed objects stay
AGEING = {"segment.ms": "200", "retention.ms": "700"}
GROUP = "group"


@dataclass(frozen=True, slots=True)
class Strike:
    """`kind`: write or store; `number`: of that event, over all lives; `action`: cut (the power goes) or kill (the process alone)."""

    kind: str
    number: int
    action: str = "cut"


@dataclass(frozen=True, slots=True)
class Plan:
    seed: str = "0"
    strikes: tuple[Strike, ...] = ()
    fate: str = "any"
    weather: str = "calm"
    batches: int = 12  # a producer and partition

    def __str__(self) -> str:
        words = [f"{strike.action}@{strike.kind}{strike.number}" for strike in self.strikes]
        return " ".join([f"seed={self.seed}", f"weather={self.weather}", f"fate={self.fate}", *words])


@dataclass
class Outcome:
    plan: Plan
    findings: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # of events a strike can be planned at
    hits: Counter[str] = field(default_factory=Counter)
    looked_at: Counter[str] = field(default_factory=Counter)  # by checker
    digest: str = ""
    tail: list[str] = field(default_factory=list)


class _Errors(logging.Handler):
    """What the broker logs as an error is one."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._findings.append(f"logged: {record.name}: {record.getMessage()} {error!r}")


class Run:
    def __init__(self, loop: SimLoop, plan: Plan) -> None:
        self.world = World(loop, plan.seed)
        self.node = SimNode(self.world)
        self.node.fate_name = plan.fate
        self.history = History()
        self.outcome = Outcome(plan, findings=self.history.findings)
        self.checkers = all_checkers()
        self._is_wanted = True
        self._is_stormy = True
        self._controller: ControllerNode | None = None  # of the last process that was stopped
        for strike in plan.strikes:
            action = self.node.cut_power if strike.action == "cut" else self.node.kill
            self.node.strikes[strike.kind, strike.number] = action

    async def main(self) -> None:
        await self._while_up(self._storm())
        await self._while_up(self._look_and_clean())
        while not self.node.is_stopped_in_order:
            await self._while_up(asyncio.sleep(DOWN_S))
        await self._compare()

    # The node.

    async def _keep_up(self) -> None:
        while self._is_wanted:
            await self._bring_up()
            await self.node.gone
            await asyncio.sleep(DOWN_S)

    async def _gremlin(self) -> None:
        """Breaks connections between two that live on, and stops the broker in order amid the load, once."""
        rand = self.world.rand.split("gremlin")
        stop_at = 2 + rand.below(5)
        for number in range(1_000):
            await asyncio.sleep(rand.below(150) / 1000)
            if not self._is_stormy:
                return
            if self.node.is_ready:
                self.world.net.break_one(self.node.host, rand)
            if number >= stop_at and self.node.is_ready:
                stop_at = 1_000
                self.world.hits["orderly stop"] += 1
                await self.node.stop()

    async def _bring_up(self) -> None:
        while True:
            try:
                await self.node.start()
                return
            except StartFailed as failed:
                if self._is_excused(failed.__cause__):
                    self.world.hits["a start failed for a full disk"] += 1
                elif failed.__cause__ is not None:
                    self.history.find("start-failed", repr(failed.__cause__))
                    raise
                await asyncio.sleep(DOWN_S)

    def _is_excused(self, error: BaseException | None) -> bool:
        """Only what a full disk may do to a process."""
        return self.outcome.plan.weather == "full disk" and isinstance(error, DiskFull)

    async def _while_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Does the work with the node kept up, and then stops it: in order, or by a strike that was planned for now."""
        self._is_wanted = True
        up, doing = asyncio.ensure_future(self._keep_up()), asyncio.ensure_future(work)
        await asyncio.wait([up, doing], return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            await up  # it does not come up any more
        await doing
        self._is_wanted = False
        await self.node.ready()
        assert self.node.broker is not None
        self._controller = self.node.broker.controller
        await self.node.stop()
        await up

    # The storm.

    def _actor(self, kind: type[A], name: str) -> A:
        return kind(self._client(name), self.history, self.world.rand, self.world.clock)

    def _client(self, name: str) -> SimClient:
        return self.world.client(name, self.node.address)

    async def _storm(self) -> None:
        admin = self.world.client("admin", self.node.address)
        first = await self._topic(admin, "first", 2, {})
        second = await self._topic(admin, "second", 1, {})
        ageing = await self._topic(admin, "ageing", 1, AGEING)
        self.history.log((ageing, 0)).is_ageing = True
        places: list[Place] = [(first, 0), (first, 1), (second, 0), (ageing, 0)]
        count = self.outcome.plan.batches
        readers = [
            asyncio.ensure_future(self._actor(Reader, f"reader{number}").run(place, lambda: not self._is_stormy))
            for number, place in enumerate(places)
        ]
        members = [
            asyncio.ensure_future(self._actor(Member, f"member{n}").run("members", 5, lambda: not self._is_stormy))
            for n in range(3)
        ]
        gremlin = asyncio.ensure_future(self._gremlin())
        weather = asyncio.ensure_future(blow(self.outcome.plan.weather, self.world, self.node))
        await asyncio.gather(
            self._actor(Idempotent, "idem0").run(places[:2], count),
            self._actor(Idempotent, "idem1").run([places[1], places[3]], count),
            self._actor(Plain, "plain0").run([places[0], places[2]], 2 * count),
            self._actor(Plain, "plain1").run([places[2], places[3]], 2 * count, acks=-1),
            self._actor(Burst, "burst0").run([places[0], places[1]], count // 2),
            self._actor(Burst, "burst1").run([places[0], places[2]], count // 2),
            self._actor(Doubler, "doubler").run(self._client("doubler other"), places[2], count),
            self._actor(Committer, "committer").run(GROUP, "first", places[0], count),
            self._actor(Trimmer, "trimmer").run("second", places[2], 4),
            self._actor(Churner, "churner").run("churned", 2),
        )
        await weather
        self._is_stormy = False
        await asyncio.gather(gremlin, *readers, *members)
        await self._look("quiet")

    async def _topic(self, admin: SimClient, name: str, partitions: int, configs: dict[str, str]) -> bytes:
        topic_id = await asking.create_topic(admin, name, partitions, configs)
        self.history.topics[topic_id] = TopicStory(name, topic_id, partitions)
        return topic_id

    # Looking.

    async def _look(self, phase: str) -> None:
        client = self.world.client(f"looker {phase}", self.node.address)
        judge(self.checkers, self.history, await look(client, self.history))

    async def _look_and_clean(self) -> None:
        await self._look("objects")
        await asyncio.sleep(GRACE_S)  # what was doomed is deleted by now

    async def _compare(self) -> None:
        """What an orderly stop has left, with itself."""
        controller = self._controller
        assert controller is not None
        found = Found(image=controller.publisher.image, cluster_id=controller.cluster_id)
        found.objects = {key: len(content) for key, (content, _) in self.world.bucket.objects.items()}
        disk, settings = self.node.disk.restart(power_was_cut=False), self.node.settings.controller
        store = LogStore(disk, settings.log_dir, (settings.node_id,), settings.segment_bytes)
        _, recovery, _, _ = await recover(disk, self.world.rand, settings, store)
        found.replayed = recovery.image()
        judge(self.checkers, self.history, found)

    def result(self) -> Outcome:
        outcome = self.outcome
        outcome.findings += [f"unhandled: {problem}" for problem in self.world.loop.problems]
        ended = [failure for failure in self.node.failures if not self._is_excused(failure)]
        outcome.findings += [f"process-ended: {failure!r}" for failure in ended]
        outcome.counts = self.node.counts
        outcome.hits = self.world.all_hits() + self.node.disk.hits
        outcome.hits["lives"] = self.node.life_count
        outcome.hits["owned partitions"] = len(self.history.owners)
        outcome.looked_at = Counter({type(checker).__name__: checker.count for checker in self.checkers})
        outcome.digest = self.world.trace.digest()
        outcome.tail = list(self.world.trace.tail)
        return outcome


def run_plan(plan: Plan) -> Outcome:
    """Never raises for what the run does: that is a finding."""

    async def main(loop: SimLoop) -> Outcome:
        run = Run(loop, plan)
        handler, logger = _Errors(run.history.findings), logging.getLogger("millrace")
        logger.addHandler(handler)
        try:
            async with asyncio.timeout(LIMIT_S):
                await run.main()
        except Exception as error:
            run.history.find("run-failed", repr(error))
        finally:
            logger.removeHandler(handler)
        return run.result()

    was_collecting = gc.isenabled()
    gc.collect()
    gc.disable()  # when garbage is found must not matter
    try:
        return run_simulation(main)
    finally:
        if was_collecting:
            gc.enable()
