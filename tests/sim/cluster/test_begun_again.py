"""A recovery that was broken off once it had taken the log is begun again by the same broker, in a later
epoch: the log is not taken twice in one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.quorum.log_recovery import LogRecovery
from millrace.s3stream.errors import StreamFenced
from tests.sim import asking
from tests.sim.cluster.plan import CLAIMED, SHARED, Plan
from tests.sim.cluster.run import Run
from tests.sim.cluster.test_start_beside import PARTITIONS, TOPIC, give_back, write
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.workload import ANY_TIME

TRIES_MAX = 4


@pytest.mark.parametrize("wal", ["object", SHARED, CLAIMED])
def test_a_log_that_was_taken_is_taken_again(wal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the recovering broker was silent for a moment and is named by metadata still."""
    tries = 0
    real = LogRecovery._recover

    async def broken_off(self: LogRecovery, found: Any, client: Any, owner: Any) -> None:
        nonlocal tries
        tries += 1
        assert tries <= TRIES_MAX, "it goes in a circle"
        if tries > 1:
            return await real(self, found, client, owner)
        taken = await self._open(found, client)
        async for _ in taken.recover():
            pass
        await taken.close()
        raise StreamFenced(-1, 0)

    monkeypatch.setattr(LogRecovery, "_recover", broken_off)

    async def main(loop: SimLoop) -> None:
        run = Run(loop, Plan(0, controllers=1, brokers=2, wal=wal))
        keeping = [asyncio.ensure_future(machine.keep_up()) for machine in run.machines]
        await run.all_up()
        topic_id = await asking.create_topic(run.client("admin"), TOPIC, PARTITIONS, ANY_TIME)
        await give_back(run, run.brokers[0].node_id)
        await write(run, topic_id)
        await run._stay_away(run.brokers[0])
        assert not run.history.findings
        assert tries == 2
        for task in keeping:
            task.cancel()

    run_simulation(main)
