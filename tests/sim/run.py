"""One run: a node under a workload, struck where the plan says, brought up again each time, and looked at
when all is quiet.

    storm    the actors of workload.py; a strike may come at any point of it, or of a recovery, or of a stop;
             weather.py blows
    quiet    everything is read: from caches and whatever the last recovery left there
    stop     everything goes into objects, the WAL is emptied; a start with empty caches; everything is read
             again, from objects, and once more when they are compacted and what was marked for deletion is
             deleted
    end      a last stop: metadata against its own log, the bucket and the streams' ranges

A run is its seed and its plan: the same ones give the same trace. Findings are what probes and checkers say,
what clients were told in contradiction to earlier answers, processes that ended by themselves, exceptions
that nobody took, and errors that were logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from millrace.broker.identity.binding import BindingRefused
from millrace.kraft.node import ControllerNode
from millrace.runtime.disk import DiskFull
from millrace.runtime.objectstore import StoreFull
from millrace.runtime.rand import Rand
from millrace.wal.errors import WalCorrupt
from tests.sim import asking
from tests.sim.checkers import Found, all_checkers
from tests.sim.client import SimClient
from tests.sim.clones import Cloned
from tests.sim.followers import Follower, Steady
from tests.sim.history import History, Place, TopicStory
from tests.sim.look import ALL_LOOKUPS, judge, look
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.lost_log import LostLog
from tests.sim.members import Member
from tests.sim.node import SimNode, StartFailed
from tests.sim.objectstore import StoreFault
from tests.sim.plan import ALL, GIVEN_UP_TWICE, LATE, PLAIN, SOON, Plan
from tests.sim.probes import Probes
from tests.sim.salvage import Salvage
from tests.sim.settings import FEW_HOT, node_settings
from tests.sim.strange import Objects
from tests.sim.strange_wal import AcceptableWal
from tests.sim.weather import blow
from tests.sim.workload import (
    ANY_TIME,
    Actor,
    Burst,
    Churner,
    Committer,
    Corruptor,
    Crowd,
    Doubler,
    Idempotent,
    Plain,
    Reader,
    Rereader,
    Trimmer,
)
from tests.sim.world import World

A = TypeVar("A", bound=Actor)
DOWN_S = 0.05
LIMIT_S = 300.0
CROWD_MAX = 20  # a repeat whose state is in the log reads every index of a partition that is not compacted
GRACE_S = 20.0  # longer than objects pending deletion stay
AGEING = {"segment.ms": "200", "retention.ms": "700", **ANY_TIME}
HOURLY = {
    "segment.ms": "200",
    "retention.ms": "3600000",
    **ANY_TIME,
}  # nothing is that old unless a clock is believed that is wrong
GROUP = "group"
LOOKUPS_OF = {"quiet": ("middle", "beyond"), "compacted": ("first", "last")}  # where runs are to be short
EXPIRES_IN = 3  # intervals, in which what is prepared beyond its deadline is marked for deletion
LOOK_EVERY_S, LOOK_SELDOM_S = 0.025, 5.0
CAST = (
    "idempotent",
    "plain",
    "burst",
    "doubler",
    "reader",
    "rereader",
    "corruptor",
    "committer",
    "member",
    "trimmer",
    "churner",
    "gremlin",
)


@dataclass
class Outcome:
    plan: Plan
    findings: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # of events a strike can be planned at
    first_points: dict[tuple[str, str], int] = field(
        default_factory=dict
    )  # by kind and name: the number of the first
    hits: Counter[str] = field(default_factory=Counter)
    looked_at: Counter[str] = field(default_factory=Counter)  # by checker
    digest: str = ""
    lines: list[str] = field(default_factory=list)  # of the trace, the last ones


class StrangePlaceServed(Exception):
    """The run ends: its node has gone on from a past of its own, or from another's."""


class _Errors(logging.Handler):
    """What the broker logs as an error is one."""

    def __init__(self, run: Run) -> None:
        super().__init__(logging.ERROR)
        self._run = run

    def excuses(self) -> list[str]:
        plan = self._run.outcome.plan
        excuses = [text for weather, texts in EXCUSED.items() if weather in plan.weathers() for text in texts]
        return excuses + ["DiskFailed", os.strerror(errno.EIO)] * any(
            strike.action == "fail" for strike in plan.strikes
        )

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        text = f"{record.name}: {record.getMessage()} {error!r}"
        if not any(excuse in text for excuse in self.excuses()):
            self._run.history.take(f"logged: {text}")


class _Told(logging.Handler):
    """What a start says that it gives up for wal.lost.accept, and what a process that was replaced says that
    it alone has."""

    def __init__(self, run: Run) -> None:
        super().__init__(logging.WARNING)
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        strange, is_of_partition = self._run.node.strange, record.msg.startswith("WAL loss accepted: %s-%d")
        if isinstance(strange, AcceptableWal) and is_of_partition and isinstance(record.args, tuple):
            topic, partition, offset, _, epoch = map(str, record.args)
            strange.on_given_up(self._run.history, topic, int(partition), int(offset), int(epoch))
        cloned, is_left = (
            self._run.node.cloned,
            record.msg.startswith("ownership: acknowledged and "),
        )
        if cloned is not None and is_left and isinstance(record.args, tuple):
            _, topic, partition, start, end = map(str, record.args)
            cloned.on_named(topic, int(partition), int(start), int(end))


# What may be logged as an error in some weather: the damage that was done to it.
EXCUSED = {
    "rot": ("ObjectCorrupt", "is damaged at byte", "damaged data stops producers"),
    "wal rot": ("WalCorrupt", "the WAL is damaged at position"),
    "stray write": ("WalCorrupt", "the WAL is damaged at position"),
    "salvage": ("WalCorrupt", "the WAL is damaged at position", "of the WAL's object"),
    "lost races": ("WalFenced", "the WAL was taken in"),
    **dict.fromkeys(
        ("replaced", "cloned"),
        (
            "WalFenced",
            "the WAL was taken in",
            "millrace.broker.identity.ownership",
            " over from this one, incarnation ",
        ),
    ),
    "full disk": ("DiskFull", "No space left on device", "The disk of the metadata log is full"),
    **dict.fromkeys(
        ("rough store", "slow store", "strict store", "store away"),
        tuple(f"does not open: {words}" for words in ("no answer", *StoreFault.__members__)),
    ),
}


class Run:
    def __init__(self, loop: SimLoop, plan: Plan) -> None:
        self.world = World(loop, plan.seed)
        variants = [] if plan.settings == PLAIN else plan.settings.split("+")
        self.node = SimNode(self.world, settings=node_settings(1, "10.0.0.1", variants))
        self.node.fate_name = plan.fate
        self.history = History(may_be_old="replaced" in plan.weathers())
        self.history.on_find = lambda line: self.world.trace.note("finding", line)
        self.history.on_promise = self.node.on_promise
        self.node.on_strike = self._on_strike
        self.node.begin_salvage = self._begin_salvage
        self.node.begin_loss = self._begin_loss
        self.node.begin_clone = self._begin_clone
        self.outcome = Outcome(plan, findings=self.history.findings)
        self.checkers = all_checkers()
        self.probes = Probes(self.node, self.history)
        self.on_end: Callable[[Outcome], None] = lambda outcome: None  # called while the loop runs still
        self._is_wanted = True
        self._is_stormy = True
        self._controller: ControllerNode | None = None  # of the last process that was stopped
        for variant in variants:
            self.world.hits[f"settings: {variant}"] += 1
        for strike in plan.strikes:
            self.node.plan_strike(strike.kind, strike.number, strike.action)

    async def main(self) -> None:
        watching = asyncio.ensure_future(self._watch())
        await self._while_up(self._storm())
        await self._while_up(self._look_and_clean())
        while not self.node.is_stopped_in_order:
            await self._while_up(asyncio.sleep(DOWN_S))
        watching.cancel()
        await self._compare()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S if self._is_stormy else LOOK_SELDOM_S)
            self.probes.tick()

    def _on_strike(self) -> None:
        self.history.is_ending = self.outcome.plan.ends == SOON

    # The node.

    def _begin_salvage(self, rand: Rand) -> None:
        self.node.salvage = Salvage(self.node, self.history, rand)

    def _begin_loss(self, rand: Rand, copy: Objects | None) -> None:
        self.node.lost_log = LostLog(self.node, self.history, rand, copy=copy)

    def _begin_clone(self, rand: Rand) -> None:
        self.node.cloned = Cloned(self.node, self.history, rand)

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
                if self.node.strange is not None and self.node.strange.is_in_place:
                    self.history.find(
                        "strange-place-served", f"{self.node.strange.what}: a start did not see it"
                    )
                    raise StrangePlaceServed  # nothing that follows means anything
                for hurt in (self.node.salvage, self.node.lost_log):
                    if hurt is not None:
                        hurt.settle()
                if self.node.strange is not None:
                    self.node.strange.settle(self.history)
                return
            except StartFailed as failed:
                if not self._is_strange_refused(failed.__cause__):
                    self._judge_start(failed.__cause__)
            await asyncio.sleep(DOWN_S)

    def _is_strange_refused(self, error: BaseException | None) -> bool:
        strange = self.node.strange
        if strange is None or not strange.is_in_place:
            return False
        wrong = strange.undo(error)
        if wrong:
            self.history.find("refused-start-changed", wrong)
        return strange.is_over

    def _judge_start(self, error: BaseException | None) -> None:
        """Why a process ended before it served. Raises what nothing excuses."""
        hits = self.world.hits
        hurts = (self.node.salvage, self.node.lost_log, self.node.cloned)
        if any(hurt is not None and hurt.judge(error) for hurt in hurts):
            return
        if isinstance(error, WalCorrupt) and self.node.has_a_header():
            self.history.find("header-not-enough", str(error))
        if isinstance(error, WalCorrupt) and self.node.mend():
            hits["damaged log refused"] += 1
            hits["damaged log of objects refused"] += self.node.rotten_object is not None
            if not self.node.is_place_named(error):
                self.history.find("damage-not-named", str(error))
        elif self.node.is_failure_of_disk(error):
            hits["a start failed for a failed write"] += 1
        elif self.node.is_outrun(error):
            hits["a start failed for a rival"] += 1
        elif self._is_excused(error):
            hits["a start failed for lack of room"] += 1
        elif error is not None:
            self.history.find("start-failed", repr(error))
            raise error

    def _is_excused(self, error: BaseException | None) -> bool:
        """Only what a full disk may do to a process; and a full store to a start."""
        weathers = self.outcome.plan.weathers()
        if isinstance(error, BindingRefused):
            error = error.__cause__
        if isinstance(error, StoreFull):
            return "full bucket" in weathers and not self.node.is_ready  # not even a claim has room
        return "full disk" in weathers and isinstance(error, DiskFull)

    async def _while_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Does the work with the node kept up, and then stops it: in order, or by a strike that was planned
        for now."""
        self._is_wanted = True
        up, doing = asyncio.ensure_future(self._keep_up()), asyncio.ensure_future(work)
        await asyncio.wait([up, doing], return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            await up  # it does not come up any more
        await doing
        await self.node.ready()  # it may have been struck just now
        self._is_wanted = False
        assert self.node.broker is not None
        self._controller = self.node.broker.controller
        await self.node.stop()
        await up

    # The storm.

    def _actor(self, kind: type[A], name: str) -> A:
        return kind(self._client(name), self.history, self.world.rand, self.world.true_clock)

    def _client(self, name: str) -> SimClient:
        return self.world.client(name, self.node.address)

    async def _storm(self) -> None:
        admin = self.world.client("admin", self.node.address)
        first = await self._topic(admin, "first", 2, ANY_TIME)
        second = await self._topic(admin, "second", 1, HOURLY)
        ageing = await self._topic(admin, "ageing", 1, AGEING)
        self.history.log((ageing, 0)).is_ageing = True
        places: list[Place] = [(first, 0), (first, 1), (second, 0), (ageing, 0)]
        weather = asyncio.ensure_future(blow(self.outcome.plan.weather, self.world, self.node))
        lasting = [asyncio.ensure_future(work) for work in self._lasting(places)]
        await asyncio.gather(*self._ending(places))
        await weather
        self._is_stormy = False
        await asyncio.gather(*lasting)
        await self._look("quiet")

    def _lasting(self, places: list[Place]) -> Iterator[Coroutine[Any, Any, None]]:
        """Those who go on until the others have done their share."""
        if self._has("reader"):
            for number, place in enumerate(places):
                yield self._actor(Reader, f"reader{number}").run(place, lambda: not self._is_stormy)
        if self._has("rereader"):
            yield self._actor(Rereader, "rereader").run(places, lambda: not self._is_stormy)
        if self._has("member"):
            for number in range(3):
                yield self._actor(Member, f"member{number}").run("members", 5, lambda: not self._is_stormy)
        if self._has("gremlin"):
            yield self._gremlin()
        if {*GIVEN_UP_TWICE} & {*self.outcome.plan.weathers()}:
            kept = places[:3]
            yield self._actor(Steady, "steady").run_until(kept, lambda: not self._is_stormy)
            for number, place in enumerate(kept):
                yield self._actor(Follower, f"follower{number}").follow(place, lambda: not self._is_stormy)

    def _ending(self, places: list[Place]) -> Iterator[Coroutine[Any, Any, None]]:
        count = self.outcome.plan.batches
        if self._has("idempotent"):
            yield self._actor(Idempotent, "idem0").run(places[:2], count)
            yield self._actor(Idempotent, "idem1").run([places[1], places[3]], count)
        if self._has("plain"):
            yield self._actor(Plain, "plain0").run([places[0], places[2]], 2 * count)
            yield self._actor(Plain, "plain1").run([places[2], places[3]], 2 * count, acks=-1)
        if self._has("burst"):
            yield self._actor(Burst, "burst0").run([places[0], places[1]], count // 2)
            yield self._actor(Burst, "burst1").run([places[0], places[2]], count // 2)
        if self._has("doubler"):
            yield self._actor(Doubler, "doubler").run(self._client("doubler other"), places[2], count)
        if FEW_HOT in self.outcome.plan.settings.split("+"):
            yield self._actor(Crowd, "crowd").run(places[1], 8 * min(count, CROWD_MAX))
        if self._has("corruptor"):
            yield self._actor(Corruptor, "corruptor").run(places[0], 5)
        if self._has("committer"):
            yield self._actor(Committer, "committer").run(GROUP, "first", places[0], count)
        if self._has("trimmer"):
            yield self._actor(Trimmer, "trimmer").run("second", places[2], 4)
        if self._has("churner"):
            yield self._actor(Churner, "churner").run("churned", 2)

    def _has(self, name: str) -> bool:
        is_there = self.outcome.plan.cast == ALL or name in self.outcome.plan.cast.split("+")
        self.world.hits[f"cast: {name}"] += is_there
        return is_there

    async def _topic(self, admin: SimClient, name: str, partitions: int, configs: dict[str, str]) -> bytes:
        topic_id = await asking.create_topic(admin, name, partitions, configs)
        self.history.topics[topic_id] = TopicStory(name, topic_id, partitions)
        return topic_id

    # Looking.

    async def _look(self, phase: str) -> None:
        lookups = ALL_LOOKUPS if self.outcome.plan.ends == LATE else LOOKUPS_OF[phase]
        client = self.world.client(f"looker {phase}", self.node.address)
        found = await look(client, self.history, lookups)
        judge(self.checkers, self.history, found)
        if self.node.cloned is not None:
            self.node.cloned.compare(found)

    async def _look_and_clean(self) -> None:
        if self.outcome.plan.ends == LATE:
            await self._look("objects")
        await asyncio.sleep(GRACE_S)  # all is compacted by now, and what was marked for deletion is deleted
        await self._look("compacted")

    async def _compare(self) -> None:
        """What an orderly stop has left, with itself."""
        controller = self._controller
        assert controller is not None
        found = Found(image=controller.publisher.image, cluster_id=controller.cluster_id)
        found.orphans = self.node.orphans
        found.contents = {key: content for key, (content, _) in self.world.bucket.objects.items()}
        found.objects = {key: len(content) for key, content in found.contents.items()}
        if not self.world.clock.was_set:  # else the controller goes by how long it has run
            found.expired_ms = (
                self.world.clock.wall_ms() - EXPIRES_IN * self.node.settings.controller.expiry_interval_ms
            )
        found.replayed = await self.node.image_on_disk(self.world.rand)
        judge(self.checkers, self.history, found)
        for key in self.world.bucket.neglected_uploads():
            self.history.find("upload-left", f"{key}: neither completed nor aborted")

    def result(self) -> Outcome:
        outcome = self.outcome
        has_failed = any(strike.action == "fail" for strike in outcome.plan.strikes)
        for problem in self.world.loop.problems:
            if not (
                has_failed and "DiskFailed" in problem
            ):  # the process ends for it, whoever else was to be told
                outcome.findings.append(f"unhandled: {problem}")
        ended = [failure for failure in self.node.failures if not self._is_excused(failure)]
        outcome.findings += [f"process-ended: {failure!r}" for failure in ended]
        outcome.counts = self.node.counts + Counter(turn=self.world.loop.turn_count)
        outcome.first_points = dict(self.node.first_points)
        outcome.hits = self.world.all_hits() + self.node.disk.hits
        outcome.hits["lives"] = self.node.life_count
        outcome.hits["owned partitions"] = len(self.history.owners)
        is_damaged = self.node.rotten is not None or self.node.rotten_object is not None
        outcome.hits["damaged log read around"] = is_damaged and not outcome.hits["damaged log refused"]
        for checker in self.checkers:
            outcome.looked_at[type(checker).__name__] = checker.count
        for probe in self.probes.all:
            outcome.looked_at.update(probe.looked_at())
        outcome.digest = self.world.trace.digest()
        outcome.lines = list(self.world.trace.tail)
        return outcome


def run_plan(plan: Plan, prepare: Callable[[Run], None] = lambda run: None) -> Outcome:
    """Never raises for what the run does: that is a finding. `prepare` is called before anything happens."""

    async def main(loop: SimLoop) -> Outcome:
        run = Run(loop, plan)
        prepare(run)
        handlers, logger = (_Errors(run), _Told(run)), logging.getLogger("millrace")
        for handler in handlers:
            logger.addHandler(handler)
        try:
            async with asyncio.timeout(LIMIT_S):
                await run.main()
        except Exception as error:
            run.history.find("run-failed", repr(error))
        finally:
            for handler in handlers:
                logger.removeHandler(handler)
        outcome = run.result()
        run.on_end(outcome)
        return outcome

    with steady_memory():
        return run_simulation(main)


@contextlib.contextmanager
def steady_memory() -> Iterator[None]:
    """When garbage is found must not matter to a run: it is collected after. What was loaded before the first
    is looked at once, not each time."""
    was_collecting = gc.isenabled()
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.collect()
            gc.enable()
