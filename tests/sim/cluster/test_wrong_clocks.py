"""Nodes of a cluster whose wall clocks are wrong, and who learn the time from each other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.sim import asking
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.plan import Plan
from tests.sim.cluster.run import Run
from tests.sim.cluster.trouble import do_know, watermark
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.workload import ANY_TIME

DAY_MS = 86_400_000
NEAR_MS = 3_600_000


def believed_ms(machine: Machine) -> int:
    process: Any = machine.process
    return int(process._known.believed.wall_ms())


async def until_all_know(run: Run) -> None:
    """What is committed now."""
    await run.all_up()
    committed = max(map(watermark, run.controllers))
    while not do_know(run.controllers, committed):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("is_combined", [True, False])
@pytest.mark.parametrize("off_ms", [3 * DAY_MS, -3 * DAY_MS])
def test_a_log_directory_is_lost_where_the_clock_is_wrong(off_ms: int, *, is_combined: bool) -> None:
    """Each voter's in turn, after its clock was set while it ran, and metadata was written meanwhile. It
    knows the time by what the others had written, and they by what it writes as a leader: nobody is led
    astray by a clock that is doubted where it runs."""

    async def main(loop: SimLoop) -> None:
        run = Run(loop, Plan(0, controllers=3, brokers=3, is_combined=is_combined))
        keeping = [asyncio.ensure_future(machine.keep_up()) for machine in run.machines]
        admin = run.client("admin")
        await until_all_know(run)
        for number, machine in enumerate(run.controllers):
            machine.clock.step(off_ms)
            await asking.create_topic(admin, f"t{number}", 1, ANY_TIME)
            await until_all_know(run)
            machine.kill()
            machine.lose_disk()
            await until_all_know(run)
            await asking.create_topic(admin, f"u{number}", 1, ANY_TIME)
            now_ms = run.world.true_clock.wall_ms()
            off = {one.name: believed_ms(one) - now_ms for one in run.machines}
            assert all(abs(off_ms) < NEAR_MS for off_ms in off.values()), off
        for task in keeping:
            task.cancel()

    run_simulation(main)
