"""BrokerWatch where what it decides is refused, or decided late: a broker that is gone is fenced by a later
look, and what hangs on it is done; one that is heard meanwhile is not."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from millrace.kraft.broker_watch import AGAIN_S, FENCE, SETTLE, BrokerWatch
from millrace.kraft.commands.leaders import Settled
from millrace.kraft.commands.table import Command
from millrace.kraft.errors import LogFull
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.node import ControllerNode
from millrace.kraft.sessions import Sessions
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.metadata_records import RegisterBrokerRecord
from tests.kraft.build import NODE, Broker, open_node, run, sim_disk
from tests.sim.loop import SimLoop, run_simulation

SESSION_MS = 4000
GONE, THERE = 1, 2


class Refusing:
    """A controller whose log is full, until it is not."""

    def __init__(self) -> None:
        self.is_full = True
        self.is_active = True
        self.taken: Counter[str] = Counter()
        self.alive: frozenset[int] = frozenset()

    @property
    def head(self) -> MetadataImage:
        return EMPTY_IMAGE

    def take(self, command: Command, request: Any) -> asyncio.Future[Any]:
        done = asyncio.get_running_loop().create_future()
        if self.is_full:
            done.set_exception(LogFull("/data/metadata.reserve"))
        else:
            self.taken["fence" if command is FENCE else "settle"] += 1
            assert command in (FENCE, SETTLE)
            if command is SETTLE:
                self.alive = request().alive
            done.set_result(Settled(0, {}) if command is SETTLE else [])
        return done


def test_who_could_not_be_fenced_is_fenced_by_a_later_look() -> None:
    async def main(loop: SimLoop) -> None:
        controller = Refusing()
        watch = BrokerWatch(controller, SESSION_MS)
        assert watch.hear is not None
        watch.on_leading()
        for who in (GONE, THERE):
            watch.hear(who, 0, True)
        for _ in range(8):
            await asyncio.sleep(1)
            watch.hear(THERE, 0, True)
            watch.look()
        assert not controller.taken
        controller.is_full = False
        watch.look()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert controller.taken["fence"] == 1
        assert controller.taken["settle"] >= 1
        assert controller.alive == {THERE}
        await asyncio.sleep(1)
        watch.hear(THERE, 0, True)
        watch.look()
        assert controller.taken["fence"] == 1, "it is fenced once"

    run_simulation(main)


def test_a_settlement_that_was_refused_is_made_up_for() -> None:
    """The broker was fenced, and the next decision found the log full."""

    async def main(loop: SimLoop) -> None:
        controller = Refusing()
        controller.is_full = False
        watch = BrokerWatch(controller, SESSION_MS)
        assert watch.hear is not None
        watch.on_leading()
        watch.hear(GONE, 0, True)
        for _ in range(4):
            await asyncio.sleep(1)
            if watch.look() is not None:
                break
        controller.is_full = True  # the fencing is through
        await asyncio.sleep(0.1)
        settled = controller.taken["settle"]
        controller.is_full = False
        watch.look()
        await asyncio.sleep(0.1)
        assert controller.taken["settle"] == settled + 1
        watch.look()
        await asyncio.sleep(0.1)
        assert controller.taken["settle"] == settled + 1, "once"

    run_simulation(main)


def test_the_one_broker_of_a_quorum_settles_what_a_larger_cluster_led() -> None:
    """Once it is registered, and again after a while where a full disk refused that; a broker that never had
    company is not looked at."""

    async def main(loop: SimLoop) -> None:
        controller = OfImage()
        watch = BrokerWatch(controller, None)
        assert watch.hear is None
        watch.on_leading()
        await asyncio.sleep(0.1)
        assert not controller.asked_count, "nobody is there that could take anything"
        controller.fence()
        controller.is_full = True
        watch.on_head()
        await asyncio.sleep(0.1)
        assert (controller.asked_count, controller.taken["settle"]) == (1, 0)
        controller.is_full = False
        await asyncio.sleep(AGAIN_S)
        assert (controller.taken["settle"], controller.alive) == (1, frozenset())
        watch.on_head()
        await asyncio.sleep(2 * AGAIN_S)
        assert controller.taken["settle"] == 1

    run_simulation(main)


class OfImage(Refusing):
    """Broker 1 alone, until `fence`: then another is known, and gone."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.asked_count = 0
        self._image = with_brokers(EMPTY_IMAGE, {THERE: False})

    @property
    def head(self) -> MetadataImage:
        return self._image

    def fence(self) -> None:
        self._image = with_brokers(self._image, {GONE: True})

    def take(self, command: Command, request: Any) -> asyncio.Future[Any]:
        self.asked_count += 1
        return super().take(command, request)


def with_brokers(image: MetadataImage, fenced: dict[int, bool]) -> MetadataImage:
    delta = MetadataDelta(image)
    for broker_id, is_fenced in fenced.items():
        delta.apply(RegisterBrokerRecord(broker_id, bytes(16), broker_epoch=1, fenced=is_fenced))
    return delta.done(image.offset + 1, 1)


async def open_watched() -> tuple[ControllerNode, Broker]:
    """A node that gives sessions, and a broker that has one."""
    node = await open_node(sim_disk(), session_ms=SESSION_MS)
    broker = await Broker.register(node)
    await node.controller.submit(beat(broker))
    return node, broker


def beat(broker: Broker) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(NODE, broker.epoch, 1_000_000)


def fall_silent(sessions: Sessions, now_s: float) -> None:
    """As if the broker had said nothing for a session, with looks on time."""
    sessions.begin([NODE], now_s - SESSION_MS / 1000 - 0.5)
    for since_s in (3.0, 1.5):
        assert sessions.look(now_s - since_s) == []


def wide_command() -> CreateTopicsRequest:
    """It is decided in steps, and what comes meanwhile stands behind it."""
    return CreateTopicsRequest([CreatableTopic("wide", 4000, 1)], 1000, True)


def test_a_heartbeat_that_stands_behind_a_wide_command_counts_from_its_arrival() -> None:
    """The command may take longer than a session, and the broker waits for its answer before it says more."""

    async def main() -> None:
        node, broker = await open_watched()
        sessions, now_s = node.controller.watch.sessions, asyncio.get_running_loop().time()
        assert sessions is not None
        sessions.hear(NODE, now_s - SESSION_MS / 1000)
        wide = node.controller.submit(wide_command())
        beaten = node.controller.submit(beat(broker))
        assert sessions.look(now_s + 0.1) == []
        assert not wide.done()
        await asyncio.wait([wide, beaten])
        await node.close()

    run(main())


def test_who_is_heard_before_it_is_fenced_is_not() -> None:
    """Its heartbeat stands behind a wide command, for longer than a session; what fences it, behind that."""

    async def main() -> None:
        node, broker = await open_watched()
        watch, now_s = node.controller.watch, asyncio.get_running_loop().time()
        assert watch.sessions is not None
        wide = node.controller.submit(wide_command())
        fall_silent(watch.sessions, now_s)
        looked = watch.look()
        beaten = node.controller.submit(beat(broker))
        assert looked is not None
        await asyncio.wait([wide, beaten, looked])
        assert beaten.result().error_code == 0
        assert looked.result() == []
        assert not node.publisher.image.brokers.by_id[NODE].is_fenced
        await node.close()

    run(main())


def test_a_look_is_taken_while_wide_commands_follow_one_another() -> None:
    """Who is gone is fenced behind the first of them, and not when the controller has nothing else to do."""

    async def main() -> None:
        node, _ = await open_watched()
        watch, now_s = node.controller.watch, asyncio.get_running_loop().time()
        assert watch.sessions is not None
        first, second = (node.controller.submit(wide_command()) for _ in range(2))
        fall_silent(watch.sessions, now_s)
        looked = watch.look()
        assert looked is not None
        await asyncio.wait([first, second, looked])
        assert looked.result() == [NODE]
        await node.close()

    run(main())
