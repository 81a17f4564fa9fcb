"""How brokers end: one that finds itself replaced at once, since nothing of its is to be saved any more; one
that is stopped uploads first, and then hands over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker import app
from millrace.broker.owed_range_reader import OwedRangeReader
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.quorum import follower
from millrace.broker.quorum.heartbeats import Heartbeats
from millrace.protocol.batch_build import build_batch
from millrace.protocol.records import Record
from millrace.runtime.errors import Fenced
from tests.sim import asking
from tests.sim.cluster.plan import Plan
from tests.sim.cluster.run import Run
from tests.sim.cluster.test_cut_off import Cut, cut
from tests.sim.cluster.trouble import AWAY
from tests.sim.loop import SimLoop, own_context, run_simulation
from tests.sim.objectstore import StoreFaults
from tests.sim.workload import ANY_TIME

AWAY_S = 12.0
ENDED_S = 3.0
SLOW = StoreFaults(latency_ms=(300, 400))


@pytest.mark.parametrize("is_away", [False, True], ids=["in reach", "away"])
def test_a_broker_that_is_stopped_uploads_before_it_says_so(is_away: bool) -> None:
    """All that it acknowledged is in objects by then, so that its partitions, which it leads until then, wait
    for little. A store that is away holds it up for some seconds, and no longer."""
    said: list[tuple[float, int]] = []

    async def scenario(cluster: Cut) -> None:
        machine = cluster.run.brokers[0]

        class Noted(Heartbeats):
            async def leave(self, blocked_reason: object = None) -> None:
                process = machine.process
                assert isinstance(process, app.Broker)
                assert process._engine is not None
                ranges, _ = process._engine.not_uploaded()
                said.append((asyncio.get_running_loop().time(), len(ranges)))

        loop = asyncio.get_running_loop()
        for one in cluster.run.brokers:
            process = one.process
            assert isinstance(process, follower.FollowingBroker)
            process._heartbeats.__class__ = Noted
        if is_away:
            machine.set_faults(AWAY)
        began_s = loop.time()
        await asyncio.wait_for(machine.stop(), 120)
        ((said_s, left_count),) = said
        assert bool(left_count) == is_away
        assert said_s - began_s <= follower.UPLOAD_FIRST_S + 0.1

    cut(scenario)


def test_a_broker_that_is_stopped_reads_what_others_owe_until_then() -> None:
    """It leads its partitions until they are handed over, and serves all of them."""
    said: list[bool] = []

    async def scenario(cluster: Cut) -> None:
        machine = cluster.run.brokers[0]
        process = machine.process
        assert isinstance(process, follower.FollowingBroker)
        assert process._engine is not None
        found = process._engine.owed_reads.reader
        assert isinstance(found, OwedRangeReader)
        reader: OwedRangeReader = found

        class Noted(Heartbeats):
            async def leave(self, blocked_reason: object = None) -> None:
                said.append(reader._is_closed)

        process._heartbeats.__class__ = Noted
        await asyncio.wait_for(machine.stop(), 120)
        assert said == [False]
        assert reader._is_closed

    cut(scenario)


def test_a_replaced_broker_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still, cut off from the controllers, while another recovers its log. It goes on with what its
    partitions save, is told by the bucket that it was replaced, and what it saved is acknowledged by nobody
    then: a broker that ends in order would wait ten seconds for it."""

    made: list[PartitionDirectory] = []

    class Noted(PartitionDirectory):
        def __init__(self, *args: Any, **keys: Any) -> None:
            made.append(self)
            super().__init__(*args, **keys)

    monkeypatch.setattr(app, "PartitionDirectory", Noted)

    async def main(loop: SimLoop) -> None:
        run = Run(loop, Plan(0, controllers=1, brokers=2, wal="object"))
        cut, (controller,) = run.brokers[0], run.controllers
        ends: list[BaseException | None] = []
        cut._on_end = lambda life, error: ends.append(error)  # type: ignore[method-assign]
        keeping = [asyncio.ensure_future(machine.keep_up()) for machine in run.machines]
        await run.all_up()
        client = run.client("client")
        topic_id = await asking.create_topic(client, "t", 4, ANY_TIME)
        for index in range(4):
            batch = build_batch([Record(None, b"value", run.world.true_clock.wall_ms())])
            while True:
                answer = await client.ask(0, asking.produce_request((topic_id, index), batch))
                if not answer.responses[0].partition_responses[0].error_code:
                    break
                await asyncio.sleep(0.1)
        for pair in ((cut.host, controller.host), (controller.host, cut.host)):
            run.world.net.sever(*pair)
        assert cut.life is not None
        loop.freeze(cut.life)
        await asyncio.sleep(AWAY_S)
        cut.set_faults(SLOW)
        loop.thaw()
        (directory,) = [one for one in made if one.node_id == cut.node_id]
        partitions = directory.opened()
        assert partitions
        saves = [loop.create_task(one.save(), context=own_context(cut.life)) for one in partitions]
        while not ends:  # noqa: ASYNC110  (of the process under test)
            await asyncio.sleep(0.1)
        (error,) = ends
        assert isinstance(error, Fenced), error
        assert not any(one.done() for one in saves), "nobody acknowledges what they wrote"
        assert cut.process is not None
        began_s = loop.time()
        await loop.create_task(cut.process.stop(), context=own_context(cut.life))
        assert loop.time() - began_s < ENDED_S
        for task in keeping:
            task.cancel()

    run_simulation(main)
