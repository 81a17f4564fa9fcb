"""One run: a quorum under a workload and a storm; then the faults end, and what must come true has to.

    storm    clients ask, the weather blows, strikes come at their points
    settle   everybody is up and hears (a voter may still be away): within SETTLE_S a command is committed and
             all have one offset
    calm     clients go on, nothing is wrong: nobody stands for election
    again    all are stopped in order and started: equal images, from what lies on the disks

A run is its plan: the same one gives the same trace. Findings are what watch.py and history.py say, processes
that ended by themselves, exceptions that nobody took, errors that were logged, and a run without end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from millrace.kraft import driver
from millrace.kraft.log import log_store
from tests.kraft.check import check_image
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.quorum.clients import Admin, Broker, Client
from tests.sim.quorum.cluster import Cluster
from tests.sim.quorum.gate import Refused, Unknown
from tests.sim.quorum.plan import Plan
from tests.sim.quorum.voters import lost_disks, voter_changes
from tests.sim.quorum.weather import WEATHERS
from tests.sim.run import steady_memory

LIMIT_S = 150.0
SETTLE_S = 12.0  # some three elections of the longest kind
CALM_S = 4.0
CALM_ELECTIONS_MAX = 0
BROKERS = (101, 102)
PROBER = 200
MANY_ELECTIONS = 5
READ_BYTES = 1_500
BOUNDS = ((driver, "APPLY_BYTES"), (driver, "FETCH_BYTES"), (log_store, "RECENT_BYTES_MAX"))
STORM_PAUSE_MS, CALM_PAUSE_MS = 60, 200


@dataclass
class Outcome:
    plan: Plan
    findings: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # of events a strike can be planned at, a node
    hits: Counter[str] = field(default_factory=Counter)
    looked_at: Counter[str] = field(default_factory=Counter)  # by checker
    digest: str = ""
    lines: list[str] = field(default_factory=list)  # of the trace, the last ones


class _Errors(logging.Handler):
    """What a controller logs as an error is one, unless its disk is full or damaged, or all brokers are
    fenced: those of the workload speak when it comes to them, and not in each session."""

    EXCUSED = (
        "No space left",
        "DiskFull",
        "no room for",
        "cannot be read, the one before",
        "Input/output error",
        "nobody can recover its write-ahead log: no other broker is there",
    )

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(logging.ERROR)
        self._cluster = cluster

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        text = f"{record.name}: {record.getMessage()} {error!r}"
        if not any(excuse in text for excuse in self.EXCUSED):
            self._cluster.history.find("logged", text)


class Run:
    def __init__(self, loop: SimLoop, plan: Plan) -> None:
        self.cluster = Cluster(loop, plan)
        self._loop = loop
        self._plan = plan
        self._is_over = False
        self._probes = 0

    async def main(self) -> None:
        cluster, rand = self.cluster, self.cluster.rand.split("weather")
        if self._plan.is_dynamic:
            await cluster.format()
            storms = [voter_changes(cluster, rand.split("voters")), lost_disks(cluster, rand.split("lost"))]
        else:
            storms = []
        cluster.begin()
        arguments = cluster.arguments()
        clients: list[Client] = [Admin(f"admin{number}", *arguments) for number in range(2)]
        clients += [Broker(broker_id, *arguments) for broker_id in BROKERS]
        storming: list[asyncio.Future[None]] = [
            asyncio.ensure_future(client.run(lambda: not cluster.is_stormy, STORM_PAUSE_MS))
            for client in clients
        ]
        storming += map(asyncio.ensure_future, storms)
        for name in self._plan.weathers():
            cluster.hits[f"weather: {name}"] += 1
            storming.append(asyncio.ensure_future(WEATHERS[name](cluster, rand.split(name))))
        for name in self._plan.variants():
            cluster.hits[f"settings: {name}"] += 1
        await asyncio.sleep(self._plan.storm_s)
        await cluster.calm()
        if cluster.away:
            await self._settle("with a voter away")
            cluster.away.clear()
            await cluster.calm()
        await self._settle("after the storm")
        await self._stay_calm(clients)
        await asyncio.gather(*storming)
        await self._agree("after the calm")
        self._compare()
        await self._again()

    # After the storm.

    async def _settle(self, when: str) -> None:
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._commit_one()
                await self._agree(when)
        except TimeoutError:
            roles = [repr(raft.role) for one in self.cluster.replicas.values() if (raft := one.raft)]
            ends = {node_id: image.offset for node_id, image in self.cluster.images().items()}
            self.cluster.history.find("not-settled", f"{when}, in {SETTLE_S} s: {ends} {roles}")

    async def _commit_one(self) -> None:
        self._probes += 1
        prober = Broker(PROBER + self._probes, *self.cluster.arguments())
        while True:
            try:
                await prober.register()
                return
            except (Refused, Unknown):
                await asyncio.sleep(0.05)

    async def _agree(self, when: str) -> None:
        """All come to one offset."""
        cluster = self.cluster
        try:
            async with asyncio.timeout(SETTLE_S):
                while True:
                    leader = cluster.leader()
                    raft = leader.raft if leader is not None else None
                    offsets = [image.offset for image in cluster.images().values()]
                    there = len(cluster.replicas) - len(cluster.away)
                    if raft is not None and offsets == [raft.log.end] * there:
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            ends = {node_id: image.offset for node_id, image in cluster.images().items()}
            cluster.history.find("no-one-offset", f"{when}: {ends}")

    async def _stay_calm(self, clients: list[Client]) -> None:
        """Nobody stands for election while nothing is wrong."""
        self._is_over = False
        leader = self.cluster.leader()
        before = self._epochs()
        calm = [asyncio.ensure_future(client.run(lambda: self._is_over, CALM_PAUSE_MS)) for client in clients]
        await asyncio.sleep(CALM_S)
        self._is_over = True
        await asyncio.gather(*calm)
        elections = max(self._epochs()) - max(before)
        if elections > CALM_ELECTIONS_MAX or self.cluster.leader() is not leader:
            self.cluster.history.find("flapping", f"{elections} elections in {CALM_S} s, with nothing wrong")
        for replica in self.cluster.replicas.values():
            self.cluster.gate.check_answered(replica, replica.life)

    def _epochs(self) -> list[int]:
        return [raft.epoch for one in self.cluster.replicas.values() if (raft := one.raft) is not None]

    def _compare(self) -> None:
        images = list(self.cluster.images().values())
        for image in images[1:]:
            if image.offset == images[0].offset and image != images[0]:
                self.cluster.history.find("unequal-image", f"at {image.offset}, field by field")
        if images:
            try:
                check_image(images[0])
            except AssertionError as error:
                self.cluster.history.find("unsound-image", repr(error))

    async def _again(self) -> None:
        cluster = self.cluster
        await cluster.stop_all()
        if parts := cluster.parts_left():
            cluster.history.find("part-left", ", ".join(parts))
        for replica in cluster.replicas.values():
            cluster.mend(replica)
            replica.boot()
        cluster.begin()
        await cluster.calm()
        await self._settle("after all were stopped")
        self._compare()
        await cluster.stop_all()

    def _is_excused(self, problem: str) -> bool:
        """The process ended for its disk, whoever else was to be told."""
        has_failed = any(strike.action == "fail" for strike in self._plan.strikes)
        return (has_failed and "DiskFailed" in problem) or (
            bool(self.cluster.has_full_disk) and "DiskFull" in problem
        )

    def result(self) -> Outcome:
        cluster = self.cluster
        outcome = Outcome(self._plan, cluster.history.findings)
        outcome.findings += [f"unhandled: {one}" for one in self._loop.problems if not self._is_excused(one)]
        outcome.counts = Counter({f"{kind} of all": count for kind, count in cluster.counts.items()})
        for replica in cluster.replicas.values():
            outcome.counts = outcome.counts | replica.counts
            outcome.hits["lives"] += replica.life_count
        outcome.counts["turn"] = self._loop.turn_count
        outcome.hits += cluster.all_hits()
        outcome.looked_at = cluster.watch.counts + cluster.history.counts
        outcome.hits["many elections"] = len(cluster.watch.leaders) >= MANY_ELECTIONS
        outcome.digest = cluster.trace.digest()
        outcome.lines = list(cluster.trace.tail)
        return outcome


def run_plan(plan: Plan, prepare: Callable[[Run], None] = lambda run: None) -> Outcome:
    """Never raises for what the run does: that is a finding. `prepare` is called before anything happens."""

    async def main(loop: SimLoop) -> Outcome:
        run = Run(loop, plan)
        prepare(run)
        handler, logger = _Errors(run.cluster), logging.getLogger("millrace")
        logger.addHandler(handler)
        try:
            async with asyncio.timeout(LIMIT_S):
                await run.main()
        except Exception as error:
            run.cluster.history.find("run-failed", repr(error))
        finally:
            logger.removeHandler(handler)
        return run.result()

    with steady_memory(), small_reads():
        return run_simulation(main)


@contextlib.contextmanager
def small_reads() -> Iterator[None]:
    """Logs of some kilobytes are read from their files and sent in several answers, as those of megabytes
    are."""
    kept = [(owner, name, getattr(owner, name)) for owner, name in BOUNDS]
    for owner, name in BOUNDS:
        setattr(owner, name, READ_BYTES)
    try:
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)
