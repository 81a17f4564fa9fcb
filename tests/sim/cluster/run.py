"""One run of a cluster: controllers, brokers with a log each, clients who use all of it, and trouble.

    start    all are up, a topic is there
    storm    clients write, read and commit, while trouble is made; who fails is started again
    quiet    all is healed and up; who waits for answers has them; everything is read
    halves   of plans that fall in halves: nothing else is wrong, and the one that can go on does
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
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from millrace.kraft import controller
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.features import MILLRACE_VERSION
from millrace.kraft.tables.streams import StreamState
from millrace.protocol.metadata_records import FeatureLevelRecord
from millrace.runtime.errors import Fenced, Unavailable
from millrace.s3stream.ids import StreamRole
from tests.sim import asking
from tests.sim.bugs import in_place
from tests.sim.checkers import (
    AcknowledgedIsThere,
    Checker,
    CommitsHold,
    EpochsEnd,
    OnceInOrder,
    ProducerIdsAreNew,
    ShownStays,
    TopicsHold,
)
from tests.sim.cluster.client import ClusterClient
from tests.sim.cluster.halves import Halves
from tests.sim.cluster.images import Images
from tests.sim.cluster.lost_logs import LostLogs
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.owners import watched
from tests.sim.cluster.plan import (
    APART_MS,
    CLAIMED,
    DRIFT_PPM,
    OWN_DISK,
    RIGHT,
    SET,
    SHARED,
    WALS,
    Plan,
)
from tests.sim.cluster.shared_disk import SharedDisk
from tests.sim.cluster.strikes import Strikes
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
TAKEN_OVER_S, LEFT_S = 40.0, 12.0  # a broker is away until others lead what it led; or nobody does


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
            CommitsHold(), *([EpochsEnd()] if plan.lost_logs else []),
        ]  # fmt: skip
        self._shared: SharedDisk | None = None
        if plan.wal in (SHARED, CLAIMED):
            self._shared = SharedDisk(self.world.rand.split("shared"), DISK_LATENCY_S, self.world.hits)
        self.trouble: Trouble | None = None
        self.brokers = self._combined(plan) if plan.is_combined else []
        self.controllers = list(self.brokers)
        if not plan.is_combined:
            self._apart(plan)
        self.addresses = {broker.node_id: (broker.host, PORT) for broker in self.brokers}
        self.halves = Halves(self.world, self.controllers, self.brokers, self._is_fenced)
        self.strikes = Strikes(self.world, self.machines, plan.strikes, self._is_spared)
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
        further = [asyncio.ensure_future(more) for more in self._further(trouble, admin)]
        working = [asyncio.ensure_future(work) for work in self._cast(places)]
        await asyncio.gather(troubled, *further)
        await self.strikes.end()
        await self.all_up()
        self._is_stormy, self.history.is_ending = False, True
        await asyncio.gather(*working)
        await self._look("quiet")
        if self.plan.splits:
            await self._stay_split(places)
        await self._stay_away(self.brokers[self.plan.seed % len(self.brokers)])
        for broker in self.brokers:
            broker.kill()
        await asyncio.sleep(1.0)
        await self.all_up()
        await self._look("again")
        for task in keeping:
            task.cancel()

    def _further(self, trouble: Trouble, admin: ClusterClient) -> Iterator[Coroutine[Any, Any, None]]:
        """What a plan has beside the trouble."""
        self.trouble = trouble
        if self.plan.splits:
            yield self.halves.make(self.plan.splits)
        if self.plan.lost_logs:
            about = self.images.given_up, self._newest_image
            yield LostLogs(self.world, self.history, trouble, admin, *about).make(self.plan.lost_logs)

    def _is_spared(self, machine: Machine) -> bool:
        return self.trouble is not None and machine in self.trouble.spared

    def _is_fenced(self, machine: Machine) -> bool:
        image = self._newest_image()
        broker = None if image is None else image.brokers.get(machine.node_id)
        return broker is not None and broker.is_fenced

    async def _stay_split(self, places: list[Place]) -> None:
        """Nothing else is wrong meanwhile. What the greater half leads takes writes all the while; where it
        reaches the logs of the brokers in the other half, it leads everything."""
        greater, lesser = self.halves.of_majority()
        self.history.is_ending = False
        self.halves.split(lesser)
        working = []
        for side, machines in enumerate((greater, lesser)):
            brokers = [one for one in machines if one in self.brokers]
            addresses = {one.node_id: self.addresses[one.node_id] for one in brokers}
            client = ClusterClient(self.world, addresses, f"client of half {side}")
            self.halves.put(client.name, side)
            plain = Plain(client, self.history, self.world.rand, self.world.true_clock)
            plain.ease = self._ease
            working.append(asyncio.ensure_future(plain.run(places, FOR_EVER)))
        await self._until_led(lesser)
        await self._write_in(greater, places)
        self.halves.heal()
        self.history.is_ending = True
        await self.all_up()
        await asyncio.gather(*working)

    async def _until_led(self, lesser: Sequence[Machine]) -> None:
        """By the other half, as far as it reaches the logs of this one's brokers, which run."""
        await asyncio.sleep(LEFT_S)
        deadline_s = self.world.loop.time() + TAKEN_OVER_S - LEFT_S
        while self.plan.wal not in (OWN_DISK, SHARED):
            held = [one.name for one in lesser if self._open_at(one) or self._led_by(one)]
            if not held:
                self.world.hits["halves: the greater one led all"] += 1
                return
            if self.world.loop.time() > deadline_s:
                self.history.find("half-waits", f"for {held}, whose logs it reaches")
                return
            await asyncio.sleep(0.2)

    async def _write_in(self, greater: Sequence[Machine], places: list[Place]) -> None:
        image, ids = self._newest_image(), [one.node_id for one in greater]
        assert image is not None
        addresses = {node_id: self.addresses[node_id] for node_id in ids if node_id in self.addresses}
        client = ClusterClient(self.world, addresses, "client of the greater half")
        self.halves.put(client.name, 0)
        writer = Plain(client, self.history, self.world.rand, self.world.true_clock)
        for place in places:
            data, state = image.streams.of_role(*place, StreamRole.DATA), image.topics.partition(*place)
            is_held = data is not None and data.is_open and data.node_id not in ids
            if state is None or state.leader not in ids or is_held:
                continue
            told = self.history.log(place).acknowledged
            try:
                async with asyncio.timeout(LEFT_S):
                    while not any(value.startswith(client.name.encode()) for value in told.values()):
                        await writer.run([place], 1)
            except TimeoutError:
                self.history.find("half-stalls", f"{place}, which {state.leader} leads in the greater half")
            self.world.hits["halves: written in the greater one"] += 1

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
            with in_place(watched(run.history), *run.strikes.watched()):
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
