"""Whom a client of a simulated cluster asks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.runtime.errors import Unavailable
from tests.sim import asking
from tests.sim.cluster.client import ClusterClient
from tests.sim.cluster.plan import Plan
from tests.sim.cluster.run import Run
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.workload import ANY_TIME


def test_a_client_asks_who_leads_when_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and again after an answer that did not come; another client's error changes nothing."""
    asked: list[str] = []
    look = ClusterClient._leader

    async def noted(client: ClusterClient, **keys: Any) -> int:
        asked.append(client.name)
        return await look(client, **keys)

    monkeypatch.setattr(ClusterClient, "_leader", noted)

    async def main(loop: SimLoop) -> None:
        run = Run(loop, Plan(0, controllers=1, brokers=1, wal="object"))
        keeping = [asyncio.ensure_future(machine.keep_up()) for machine in run.machines]
        await run.all_up()
        one, other = run.client("one"), run.client("other")
        topic_id = await asking.create_topic(one, "t", 1, ANY_TIME)
        for client in (one, one, other, one, other):
            await asking.fetch_patiently(client, (topic_id, 0), 0)
        assert asked[-1] == "other"
        assert asked.count("other") == 1
        before = len(asked)
        run.brokers[0].kill()
        with pytest.raises(Unavailable):
            await asking.fetch(one, (topic_id, 0), 0)
        await run.all_up()
        await asking.fetch_patiently(one, (topic_id, 0), 0)
        assert {*asked[before:]} == {"one"}
        for task in keeping:
            task.cancel()

    run_simulation(main)
