"""Brokers with logs of objects that do not reach the bucket, while controllers reach them: one of them, and
all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millrace.protocol.batch_build import build_batch
from millrace.protocol.records import Record
from tests.sim import asking
from tests.sim.cluster.client import ClusterClient
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.plan import Plan
from tests.sim.cluster.run import Run
from tests.sim.cluster.trouble import AWAY
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.node import QUIET
from tests.sim.workload import ANY_TIME

PARTITIONS = 6
MOVED_S = 45.0
LONG_S = 90.0


class Cut:
    """A cluster of three brokers beside a controller, whose topic's partitions are all written to once."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.run = Run(loop, Plan(0, controllers=1, brokers=3, wal="object"))
        self.client: ClusterClient = self.run.client("client")
        self.topic_id = b""

    async def start(self) -> None:
        self.keeping = [asyncio.ensure_future(machine.keep_up()) for machine in self.run.machines]
        await self.run.all_up()
        self.topic_id = await asking.create_topic(self.client, "t", PARTITIONS, ANY_TIME)
        for index in range(PARTITIONS):
            await self.write(index)

    def stop(self) -> None:
        for task in self.keeping:
            task.cancel()

    async def write(self, index: int) -> None:
        """Until it is acknowledged."""
        while True:
            batch = build_batch([Record(None, b"value", self.run.world.true_clock.wall_ms())])
            request = asking.produce_request((self.topic_id, index), batch)
            try:
                answer = await self.client.ask(0, request, timeout_s=2.0)
            except Exception:
                continue
            if not answer.responses[0].partition_responses[0].error_code:
                return
            await asyncio.sleep(0.1)

    def led(self) -> list[int]:
        image = self.run._newest_image()
        assert image is not None
        topic = image.topics.by_id(self.topic_id)
        assert topic is not None
        return [state.leader for state in topic.partitions]

    def is_fenced(self, machine: Machine) -> bool:
        image = self.run._newest_image()
        assert image is not None
        return image.brokers.by_id[machine.node_id].is_fenced


def cut(scenario: Callable[[Cut], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: SimLoop) -> None:
        cluster = Cut(loop)
        await cluster.start()
        await scenario(cluster)
        cluster.stop()

    run_simulation(main)


@pytest.mark.parametrize("is_busy", [True, False], ids=["written to", "idle"])
def test_others_lead_what_one_led_that_does_not_reach_the_bucket(is_busy: bool) -> None:
    """Its log is recovered by another, with all that it had acknowledged, and its partitions take writes
    while it is still cut off. When it reaches the bucket again it serves like any broker."""

    async def scenario(cluster: Cut) -> None:
        machine = cluster.run.brokers[0]
        mine = [index for index, leader in enumerate(cluster.led()) if leader == machine.node_id]
        assert mine
        machine.set_faults(AWAY)
        writes = [asyncio.ensure_future(cluster.write(index)) for index in mine if is_busy]
        began_s = cluster.loop.time()
        while machine.node_id in cluster.led():
            await asyncio.sleep(0.2)
            assert cluster.loop.time() - began_s < MOVED_S
        for index in mine:
            await cluster.write(index)
        await asyncio.gather(*writes)
        machine.set_faults(QUIET)
        healed_s = cluster.loop.time()
        while cluster.is_fenced(machine):
            await asyncio.sleep(0.2)
            assert cluster.loop.time() - healed_s < MOVED_S
        await cluster.run.all_up()

    cut(scenario)


@pytest.mark.parametrize("is_busy", [True, False], ids=["one is written to", "idle"])
def test_where_all_are_cut_off_nothing_moves(is_busy: bool) -> None:
    """The store is away: nobody is fenced, nobody ends, and writes go on where they were when it is back."""

    async def scenario(cluster: Cut) -> None:
        before, lives = cluster.led(), [machine.life_count for machine in cluster.run.brokers]
        for machine in cluster.run.brokers:
            machine.set_faults(AWAY)
        writing = asyncio.ensure_future(cluster.write(0)) if is_busy else None
        for _ in range(int(LONG_S)):
            await asyncio.sleep(1.0)
            assert not any(map(cluster.is_fenced, cluster.run.brokers))
        assert cluster.led() == before
        for machine in cluster.run.brokers:
            machine.set_faults(QUIET)
        if writing is not None:
            await writing
        for index in range(PARTITIONS):
            await cluster.write(index)
        assert cluster.led() == before
        assert lives == [machine.life_count for machine in cluster.run.brokers]

    cut(scenario)
