"""One run of a cluster: controllers, brokers with a log each, clients who use all of it, and trouble.

    start    all are up, a topic is there
    storm    clients write, read and commit, while trouble is made; who fails is started again
    quiet    all is healed and up; who waits for answers has them; everything is read
    absence  one broker is killed and stays away: where another reaches its log, others come to lead what it
             led; where nobody does, nobody takes it
    again    all brokers are killed, and started; everything is read

What must hold is what clients may rely on (checkers.py) and, of the cluster: equal offset, equal image; a
stream has one owner, and a next one only after it was closed; a process ends by itself only where it was
replaced; what was begun comes to its end within LIMIT_S of virtual time. A seed is a run: the same one gives
the same trace.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from millrace.kraft import controller
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.features import MILLRACE_VERSION, MILLRACE_VERSION_LEVEL, OWED_RANGES_LEVEL
from millrace.kraft.tables.streams import StreamState
from millrace.protocol.metadata_records import FeatureLevelRecord
from millrace.runtime.errors import Fenced, Unavailable
from millrace.runtime.rand import Rand
from millrace.s3stream.ids import StreamRole
from tests.sim import asking
from tests.sim.bugs import in_place
from tests.sim.checkers import (
    AcknowledgedIsThere,
    Checker,
    CommitsHold,
    OnceInOrder,
    ProducerIdsAreNew,
    ShownStays,
    TopicsHold,
)
from tests.sim.cluster.client import ClusterClient
from tests.sim.cluster.images import Images
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.owners import watched
from tests.sim.cluster.shared_disk import SharedDisk
from tests.sim.cluster.trouble import Trouble
from tests.sim.history import History, Place, TopicStory
from tests.sim.look import judge, look
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.node import DISK_LATENCY_S
from tests.sim.run import steady_memory
from tests.sim.settings import PORT, node_settings
from tests.sim.workload import ANY_TIME, Batch, Committer, Idempotent, Plain, Reader, Rereader
from tests.sim.world import World

CONTROLLER_PORT = 9093
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
FIRST_BROKER = 101
TOPIC, PARTITIONS, GROUPS = "first", 4, 3
LIMIT_S = 400.0
CALM = 6  # times as long are the pauses of clients
SETTLE_S = 60.0  # for all to be up once nothing is wrong
SIZE_FLOOR_BYTES = 1 << 10  # objects of some kilobytes have sizes, and are merged with their equals
FOR_EVER = 1_000_000  # until all shall come to an end
WALS = {
    "block": "0@file:///data/wal?capacity=512KiB",
    "object": "0@mem://wal?capacity=512KiB",
    "quick object": "0@mem://wal?capacity=384KiB&batchInterval=0",
    "shared block": "0@file:///shared/wal{node_id}?capacity=512KiB",
    "claimed block": "0@file:///shared/wal{node_id}?capacity=512KiB&fencing=claim",
}
DRAWN = ("block", "object", "quick object", "shared block")
SHARED, CLAIMED = "shared block", "claimed block"
BEFORE_OWED_RANGES = OWED_RANGES_LEVEL - 1  # clusters of an earlier release that were not upgraded yet
OWN_DISK = "block"  # the log that nobody but its node reaches
RIGHT, APART, SET = CLOCKS = ("right", "apart", "set")
APART_MS, DRIFT_PPM = 2 * 86_400_000, 1_000  # at most, ahead or behind; less than what retention keeps
TAKEN_OVER_S, LEFT_S = 40.0, 12.0  # a broker is away until others lead what it led; or nobody does


@dataclass(frozen=True)
class Plan:
    """`is_combined`: each broker is a controller too; `controllers` says nothing then. `is_balanced`: the
    balancer looks all the time. `level`: of millrace.version; below OWED_RANGES_LEVEL streams that move are
    uploaded first. `only_trouble`: kinds of trouble that stand in the place of the others. `is_calm`: clients
    pause between requests, and brokers between uploads, so that a run takes a third of the CPU, and logs lie
    idle now and then, or hold more. `clocks`: of
    machines: right, up to two days apart, or, besides, set while they run. `loses_disks`: log directories."""

    seed: int
    controllers: int = 1
    brokers: int = 3
    wal: str = "object"
    troubles: int = 8
    batches: int = 6
    is_combined: bool = False
    is_balanced: bool = False
    level: int = MILLRACE_VERSION_LEVEL
    only_trouble: str = ""
    is_calm: bool = False
    clocks: str = RIGHT
    loses_disks: bool = False

    def __str__(self) -> str:
        controllers = "combined" if self.is_combined else self.controllers
        only = f" only={self.only_trouble}" if self.only_trouble else ""
        return (
            f"{self.seed} controllers={controllers} brokers={self.brokers} "
            f"wal={self.wal.replace(' ', '-')} troubles={self.troubles} batches={self.batches}"
            f"{' balanced' * self.is_balanced}{' calm' * self.is_calm}"
            f"{f' clocks={self.clocks}' * (self.clocks != RIGHT)}{' lost-disks' * self.loses_disks}"
            f"{only} level={self.level}"
        )


def drawn_plan(seed: int) -> Plan:
    """The figures of a hunt's seed. What is drawn besides comes from a source of its own, so that all else
    of the plan stays what it was."""
    plan = Plan(seed, (1, 3)[seed % 2], 2 + seed // 2 % 3, DRAWN[seed // 6 % len(DRAWN)], 3 + seed % 9)
    if plan.wal == SHARED and Rand(f"fencing of {seed}".encode()).below(2):
        plan = replace(plan, wal=CLAIMED)
    if plan.wal == SHARED and Rand(f"only trouble of {seed}".encode()).below(2):
        plan = replace(plan, only_trouble="owed")
    is_before = seed % 3 == 1 and not plan.only_trouble
    level = BEFORE_OWED_RANGES if is_before else MILLRACE_VERSION_LEVEL
    is_calm = Rand(f"calm of {seed}".encode()).below(4) > 0
    plan = replace(plan, is_balanced=seed % 7 < 3, level=level, is_calm=is_calm)
    clocks = CLOCKS[Rand(f"clocks of {seed}".encode()).below(len(CLOCKS))]
    loses_disks = not plan.only_trouble and Rand(f"lost disks of {seed}".encode()).below(3) == 0
    plan = replace(plan, clocks=clocks, loses_disks=loses_disks)
    if plan.brokers == 4 and Rand(f"brokers of {seed}".encode()).below(4) == 0:
        plan = replace(plan, brokers=5)
    return replace(plan, brokers=3, is_combined=True) if seed % 5 == 0 else plan


@dataclass
class Outcome:
    plan: Plan
    findings: list[str] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    looked_at: Counter[str] = field(default_factory=Counter)
    digest: str = ""
    lines: list[str] = field(default_factory=list)


EAGER = {  # partitions are balanced all the time
    "autobalancer_controller_anomaly_detect_interval_ms": "1000",
    "autobalancer_reporter_metrics_reporting_interval_ms": "500",
    "autobalancer_controller_network_in_usage_distribution_detect_threshold": "500",
    "autobalancer_controller_network_out_usage_distribution_detect_threshold": "500",
}
LEISURELY = {"s3_wal_upload_interval_ms": "1000"}


class Run:
    def __init__(self, loop: SimLoop, plan: Plan) -> None:
        self.plan = plan
        self.world = World(loop, f"cluster {plan.seed}")
        self.history = History(may_be_old=True)
        self.outcome = Outcome(plan, findings=self.history.findings)
        self.images = Images(self.history, self.world.hits)
        self.checkers: list[Checker] = [
            AcknowledgedIsThere(), ShownStays(), OnceInOrder(), ProducerIdsAreNew(), TopicsHold(),
            CommitsHold(),
        ]  # fmt: skip
        self._shared: SharedDisk | None = None
        if plan.wal in (SHARED, CLAIMED):
            self._shared = SharedDisk(self.world.rand.split("shared"), DISK_LATENCY_S, self.world.hits)
        self.brokers = self._combined(plan) if plan.is_combined else []
        self.controllers = list(self.brokers)
        if not plan.is_combined:
            self._apart(plan)
        self.addresses = {broker.node_id: (broker.host, PORT) for broker in self.brokers}
        self._is_stormy = True
        self._ease = CALM if plan.is_calm else 1

    def _combined(self, plan: Plan) -> list[Machine]:
        ids = range(1, plan.brokers + 1)
        voters = ",".join(f"{node_id}@10.0.0.{node_id}:{CONTROLLER_PORT}" for node_id in ids)
        return [
            self._machine(
                node_id, f"10.0.0.{node_id}", controller_quorum_voters=voters, cluster_id=CLUSTER,
                listeners=f"PLAINTEXT://10.0.0.{node_id}:{PORT},CONTROLLER://10.0.0.{node_id}:{CONTROLLER_PORT}",
                s3_wal_path=WALS[plan.wal].format(node_id=node_id),
            )
            for node_id in ids
        ]  # fmt: skip

    def _apart(self, plan: Plan) -> None:
        ids = range(1, plan.controllers + 1)
        voters = ",".join(f"{node_id}@10.1.0.{node_id}:{CONTROLLER_PORT}" for node_id in ids)
        shared = {"controller_quorum_voters": voters, "cluster_id": CLUSTER}
        self.controllers = [
            self._machine(
                node_id, f"10.1.0.{node_id}", process_roles="controller",
                listeners=f"CONTROLLER://10.1.0.{node_id}:{CONTROLLER_PORT}", **shared,
            )
            for node_id in ids
        ]  # fmt: skip
        self.brokers = [
            self._machine(
                node_id, f"10.0.0.{node_id}", process_roles="broker",
                s3_wal_path=WALS[plan.wal].format(node_id=node_id), **shared,
            )
            for node_id in range(FIRST_BROKER, FIRST_BROKER + plan.brokers)
        ]  # fmt: skip

    def _machine(self, node_id: int, host: str, **keys: str) -> Machine:
        drawn = (EAGER if self.plan.is_balanced else {}) | (LEISURELY if self.plan.is_calm else {})
        settings = node_settings(node_id, host, **drawn, **keys)
        compaction = replace(settings.compaction, size_floor_bytes=SIZE_FLOOR_BYTES)
        settings = replace(settings, compaction=compaction)
        machine = Machine(self.world, settings, host, self._shared)
        machine.on_image = self.images.meet
        if self.plan.clocks != RIGHT:
            rand = self.world.rand.split(f"clock {node_id}")
            machine.clock.offset_ms = rand.below(2 * APART_MS) - APART_MS
            machine.clock.drift_ppm = rand.below(2 * DRIFT_PPM) - DRIFT_PPM
        return machine

    @property
    def machines(self) -> list[Machine]:
        return list(dict.fromkeys((*self.controllers, *self.brokers)))

    def client(self, name: str, place: Place | None = None) -> ClusterClient:
        return ClusterClient(self.world, self.addresses, name, place)

    async def main(self) -> None:
        keeping = [asyncio.ensure_future(machine.keep_up()) for machine in self.machines]
        await self.all_up()
        admin = self.client("admin")
        topic_id = await asking.create_topic(admin, TOPIC, PARTITIONS, ANY_TIME)
        self.history.topics[topic_id] = TopicStory(TOPIC, topic_id, PARTITIONS)
        await self._all_know(topic_id)
        places: list[Place] = [(topic_id, index) for index in range(PARTITIONS)]
        trouble = Trouble(self.world, self.controllers, self.brokers, admin, TOPIC, PARTITIONS)
        if self.plan.wal == CLAIMED:
            trouble.add_of_claims()
        if self.plan.clocks == SET:
            trouble.add_set_clocks()
        if self.plan.loses_disks:
            trouble.add_lost_disks()
        if self.plan.only_trouble:
            trouble.keep_to(self.plan.only_trouble)
        troubled = asyncio.ensure_future(trouble.make(self.plan.troubles))
        working = [asyncio.ensure_future(work) for work in self._cast(places)]
        await troubled
        await self.all_up()
        self._is_stormy, self.history.is_ending = False, True
        await asyncio.gather(*working)
        await self._look("quiet")
        await self._stay_away(self.brokers[self.plan.seed % len(self.brokers)])
        for broker in self.brokers:
            broker.kill()
        await asyncio.sleep(1.0)
        await self.all_up()
        await self._look("again")
        for task in keeping:
            task.cancel()

    async def _stay_away(self, broker: Machine) -> None:
        """Nothing else is wrong meanwhile. What it was giving to others as it was killed it may have closed
        with its last word, which is committed behind its end."""
        broker.is_wanted = False
        open_before, led_before = self._open_at(broker), self._led_by(broker)
        broker.kill()
        if self.plan.wal == OWN_DISK:
            kept = [one.stream_id for one in open_before if (one.topic_id, one.partition) in led_before]
            await asyncio.sleep(LEFT_S)
            if not set(kept) <= {one.stream_id for one in self._open_at(broker)}:
                self.history.find("taken-unrecovered", f"{broker.name} led what others have now")
            self.world.hits["absence: waited for"] += bool(kept)
            await self._read_history(broker, led_before)
        else:
            deadline_s = self.world.loop.time() + TAKEN_OVER_S
            while self._open_at(broker) or self._led_by(broker):
                if self.world.loop.time() > deadline_s:
                    streams = [one.stream_id for one in open_before]
                    self.history.find("waits", f"for {broker.name}, whose log others reach: {streams}")
                    break
                await asyncio.sleep(0.2)
            self.world.hits["absence: taken over"] += bool(open_before)
        broker.is_wanted = True
        broker.wake()
        await self.all_up()

    async def _read_history(self, gone: Machine, places: set[Place]) -> None:
        """What objects hold of partitions that nobody leads is read all the same."""
        image, client = self._newest_image(), self.client("consumer of history")
        assert image is not None
        for place in sorted(places):
            data = image.streams.of_role(*place, StreamRole.DATA)
            if data is None or not data.is_open or data.node_id != gone.node_id:
                continue
            owed = image.streams.owed.of_stream(data.stream_id)
            if data.start == (owed[0].start if owed else data.end):
                continue
            try:
                async with asyncio.timeout(LEFT_S):
                    part = await asking.fetch_patiently(client, place, data.start)
            except TimeoutError:
                self.history.find("history-unread", f"{place}: no answer")
                continue
            if part.error_code or not asking.records_of(part, data.start):
                self.history.find("history-unread", f"{place} from {data.start}: code {part.error_code}")
            self.world.hits["absence: history read"] += 1

    def _open_at(self, broker: Machine) -> list[StreamState]:
        image = self._newest_image()
        return [] if image is None else list(image.streams.open_on(broker.node_id))

    def _led_by(self, broker: Machine) -> set[Place]:
        image = self._newest_image()
        return {
            (topic.topic_id, index)
            for topic in (() if image is None else image.topics)
            for index, state in enumerate(topic.partitions)
            if state.leader == broker.node_id
        }

    async def all_up(self) -> None:
        """Every process serves, and nothing is left to recover."""
        deadline_s = self.world.loop.time() + SETTLE_S
        while not all(machine.is_ready for machine in self.machines) or self._has_failovers():
            if self.world.loop.time() > deadline_s:
                down = [machine.name for machine in self.machines if not machine.is_ready]
                self.history.find("not-settled", f"{down} do not come up, failovers {self._has_failovers()}")
                raise Unsettled
            await asyncio.sleep(0.05)

    def _has_failovers(self) -> bool:
        newest = self._newest_image()
        return newest is not None and bool(len(newest.failovers))

    def _newest_image(self) -> MetadataImage | None:
        """Of those that are up."""
        images = [one.controller.publisher.image for one in self.machines if one.is_ready and one.controller]
        return max(images, key=lambda image: image.offset, default=None)

    async def _all_know(self, topic_id: bytes) -> None:
        def knows(machine: Machine) -> bool:
            controller = machine.controller
            return controller is not None and controller.publisher.image.topics.by_id(topic_id) is not None

        while not all(map(knows, self.brokers)):  # noqa: ASYNC110  (each broker has an image of its own)
            await asyncio.sleep(0.05)

    def _cast(self, places: list[Place]) -> Iterator[Coroutine[Any, Any, None]]:
        args = self.history, self.world.rand, self.world.true_clock
        for number, place in enumerate(places):
            reader = PatientReader(self.client(f"reader{number}", place), *args)
            reader.ease = self._ease
            yield reader.run(place, lambda: not self._is_stormy)
            yield self._write(number, place)
        rereader = GaplessRereader(self.client("rereader"), *args)
        rereader.ease = self._ease
        yield rereader.run(places, lambda: not self._is_stormy)
        plain = Plain(self.client("plain"), *args)
        plain.ease = self._ease
        yield plain.run(places, FOR_EVER)
        for number in range(GROUPS):
            group, place = f"group{number}", places[number % len(places)]
            committer = Committer(self.client(f"committer{number}"), *args)
            committer.ease = self._ease
            yield committer.run(group, TOPIC, place, FOR_EVER)

    async def _write(self, number: int, place: Place) -> None:
        """One producer after another, each of a few batches."""
        for again in range(FOR_EVER):
            name = f"idem{number}.{again}"
            args = self.client(name, place), self.history, self.world.rand, self.world.true_clock
            await PatientProducer(*args).run([place], self.plan.batches)
            if not self._is_stormy:
                return
            await asyncio.sleep(0.4 * self._ease)

    async def _look(self, phase: str) -> None:
        found = await look(self.client(f"looker {phase}"), self.history, ())
        judge(self.checkers, self.history, found)

    def judge_ends(self) -> None:
        """A process ends by itself where another one has taken its place, and for nothing else."""
        for machine in self.machines:
            for error in machine.ends:
                if not is_fenced(error):
                    self.history.find("process-ended", f"{machine.name}: {error!r}")
                self.world.hits["ended, for it was replaced"] += is_fenced(error)


class GaplessRereader(Rereader):
    may_step_over = False


class PatientReader(Reader):
    may_step_over = False  # nothing is deleted

    async def _reset(self, place: Place, offset: int) -> int:
        """A leader that was replaced, and is cut off from who would tell it, knows no later offsets; this
        client checks no epochs. What is missing at the end is found there."""
        await asyncio.sleep(asking.PAUSE_S)
        return offset


class PatientProducer(Idempotent):
    async def _pipeline(self, place: Place, waiting: deque[Batch]) -> bool:
        """A node that is killed while it is cut off closes no connection: whoever asked it asks anew once its
        own time-out has passed, as Kafka's clients do."""
        try:
            return await super()._pipeline(place, waiting)
        except TimeoutError:
            raise Unavailable("no answer") from None


class Unsettled(Exception):
    """Nothing that follows means anything."""


def is_fenced(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, Fenced):
            return True
        error = error.__cause__ or error.__context__
    return False


def at_level(level: int) -> Callable[[Any], Any]:
    """What makes a cluster begin at that level of millrace.version, be it supported or not."""

    def make(old: Any) -> Any:
        return lambda: [*old(), FeatureLevelRecord(MILLRACE_VERSION, level)]

    return make


def run_plan(plan: Plan) -> Outcome:
    """A run from beginning to end; what escapes is a finding."""
    with steady_memory():
        return _run_plan(plan)  # of which nothing is left when memory is looked through


def _run_plan(plan: Plan) -> Outcome:
    logging.disable(logging.CRITICAL)
    made: list[Run] = []

    async def main(loop: SimLoop) -> None:
        run = Run(loop, plan)
        made.append(run)
        limit = asyncio.timeout(LIMIT_S)
        try:
            with in_place(watched(run.history)):
                async with limit:
                    await run.main()
        except TimeoutError as error:
            if limit.expired():
                run.history.find("not-settled", f"it is not over after {LIMIT_S} s")
            else:
                run.history.find("run-failed", repr(error))
        except Unsettled:
            pass
        except Exception as error:
            run.history.find("run-failed", repr(error))
        run.judge_ends()
        for problem in loop.problems:
            if "Lost(" not in problem:  # an answer that its client does not wait for any more
                run.history.find("unhandled", problem)

    try:
        with in_place((controller, "bootstrap_records", at_level(plan.level))):
            run_simulation(main)
    finally:
        logging.disable(logging.NOTSET)
    (run,) = made
    outcome = run.outcome
    outcome.hits = run.world.all_hits()
    for checker in run.checkers:
        outcome.looked_at[type(checker).__name__] += checker.count
    outcome.looked_at["images"] = run.images.count
    outcome.digest, outcome.lines = run.world.trace.digest(), list(run.world.trace.tail)
    return outcome
