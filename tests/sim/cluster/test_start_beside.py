"""A broker that starts while another recovers its write-ahead log waits for that, and goes on in the same
process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.quorum.follower import FollowingBroker
from millrace.kraft.node import ControllerNode
from millrace.protocol.batch_build import build_batch
from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.protocol.records import Record
from tests.sim import asking
from tests.sim.cluster.plan import CLAIMED, SHARED, Plan
from tests.sim.cluster.run import FIRST_BROKER, Run
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.node import QUIET
from tests.sim.objectstore import StoreFaults
from tests.sim.workload import ANY_TIME

SLOW = StoreFaults(latency_ms=(60, 120), timeout_ms=2_000)  # a recovery takes a second or two
TOPIC, PARTITIONS = "t", 2
GONE_S = 6.0  # a broker that has no session by then is recovered
# Steps of a start, and how much further the other is each time than that it has begun.
STEPS = {
    "_until_bound": (0.0, 0.4, 0.5, 5.0),  # before its look at claims and log
    "_settle_clock": (0.0, 0.3, 0.6, 5.0),  # behind it
    "_claim": (0.6,),  # it has claimed its node
}


async def give_back(run: Run, node_id: int) -> None:
    """All partitions are the broker's to lead."""
    mine = [ReassignablePartition(index, [node_id]) for index in range(PARTITIONS)]
    asked = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(TOPIC, mine)])
    answer = await run.client("mover").ask(45, asked)
    assert {one.error_code for topic in answer.responses for one in topic.partitions} == {0}, answer


async def write(run: Run, topic_id: bytes) -> None:
    """To each partition, until it is acknowledged."""
    client = run.client("client")
    for index in range(PARTITIONS):
        batch = build_batch([Record(None, b"value", run.world.true_clock.wall_ms())])
        while True:
            answer = await client.ask(0, asking.produce_request((topic_id, index), batch))
            if not answer.responses[0].partition_responses[0].error_code:
                break
            await asyncio.sleep(0.1)


async def until_begun(node: ControllerNode, further_s: float) -> None:
    """By another, in the name of this broker, as this node's image has it; and so much further. Or until it
    would have."""

    def epoch() -> int:
        return node.publisher.image.brokers.by_id[FIRST_BROKER].epoch

    before = epoch()
    try:
        async with asyncio.timeout(GONE_S):
            while epoch() == before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        return
    await asyncio.sleep(further_s)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("wal", ["object", SHARED, CLAIMED])
def test_a_start_beside_a_recovery_goes_on_in_its_process(
    wal: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen that nobody recovers its log, and stops at a step of its start until another has begun to;
    each time until that has come further, and at last to its end; or has claimed its node, when none
    begins any more."""
    held: list[float] = []
    real = getattr(FollowingBroker, step)

    async def hold(self: FollowingBroker, *args: Any) -> Any:
        found = await real(self, *args)
        if held and self._settings.node_id == FIRST_BROKER:
            assert self.controller is not None
            await until_begun(self.controller, held.pop())
        return found

    monkeypatch.setattr(FollowingBroker, step, hold)

    async def main(loop: SimLoop) -> None:
        run = Run(loop, Plan(0, controllers=1, brokers=3, wal=wal))
        keeping = [asyncio.ensure_future(machine.keep_up()) for machine in run.machines]
        await run.all_up()
        topic_id = await asking.create_topic(run.client("admin"), TOPIC, PARTITIONS, ANY_TIME)
        victim = run.brokers[0]
        for further_s in STEPS[step]:
            await give_back(run, victim.node_id)
            await write(run, topic_id)
            held.append(further_s)
            for machine in run.brokers:
                machine.set_faults(SLOW)
            victim.kill()
            await run.all_up()
            for machine in run.brokers:
                machine.set_faults(QUIET)
            assert not held
            assert not victim.ends, victim.ends
            await write(run, topic_id)
        assert victim.life_count == 1 + len(STEPS[step])
        for task in keeping:
            task.cancel()

    run_simulation(main)
