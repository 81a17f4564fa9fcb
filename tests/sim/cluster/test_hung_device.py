"""A device that neither answers nor fails, while a broker recovers the log on it of one that is gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.quorum.log_recovery import STALLED_S
from tests.sim import asking
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.plan import CLAIMED, SHARED, Plan
from tests.sim.cluster.run import Run
from tests.sim.cluster.shared_disk import MountedDisk
from tests.sim.cluster.test_start_beside import write
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.workload import ANY_TIME

SESSION_S = 4.0
GIVEN_UP_S = 40.0  # longer than it takes to find that a device hangs, and to wait for what is cancelled


class Device:
    """It hangs for whoever opens it first once it is `armed`, until `answers` is set."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_armed = False
        self.answers = asyncio.Event()
        self.hung: MountedDisk | None = None

    def is_hung_for(self, disk: MountedDisk, path: str) -> bool:
        if self.is_armed and path == self.path and self.hung is None:
            self.hung = disk
        return self.hung is disk and path == self.path and not self.answers.is_set()


class HungFile:
    """What is read of it comes when the device answers, and it is closed no earlier, as threads that read
    cannot be called off. All else is the file's own."""

    def __init__(self, file: Any, device: Device) -> None:
        self._file = file
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    async def read_at(self, position: int, length: int) -> Any:
        await self._device.answers.wait()
        return await self._file.read_at(position, length)

    async def close(self) -> None:
        await self._device.answers.wait()
        await self._file.close()


def hangs(monkeypatch: pytest.MonkeyPatch, device: Device, *, is_before_open: bool) -> None:
    open_block = MountedDisk.open_block

    async def open_hung(self: MountedDisk, path: str, size_bytes: int, **words: Any) -> Any:
        is_hung = device.is_hung_for(self, path)
        if is_hung and is_before_open:
            await device.answers.wait()
        file: Any = await open_block(self, path, size_bytes, **words)
        return HungFile(file, device) if is_hung else file

    monkeypatch.setattr(MountedDisk, "open_block", open_hung)


async def goes(run: Run, victim: Machine) -> None:
    victim.is_wanted = False
    victim.kill()
    await asyncio.sleep(SESSION_S)


async def served(run: Run) -> tuple[list[asyncio.Task[None]], bytes]:
    """What keeps its machines up, and the id of a topic that has been written to."""
    keeping = [asyncio.ensure_future(machine.keep_up()) for machine in run.machines]
    await run.all_up()
    topic_id = await asking.create_topic(run.client("admin"), "t", 2, ANY_TIME)
    await write(run, topic_id)
    return keeping, topic_id


async def hung_as_it_goes(
    run: Run, victim: Machine, monkeypatch: pytest.MonkeyPatch, *, is_before_open: bool
) -> Device:
    """The victim is gone, and the device of its log hangs for who is to recover it."""
    device = Device(f"/shared/wal{victim.node_id}")
    hangs(monkeypatch, device, is_before_open=is_before_open)
    device.is_armed = True
    await goes(run, victim)
    return device


def holders(run: Run) -> list[int]:
    """Brokers whose logs are to be recovered."""
    image = max(
        (one.controller.publisher.image for one in run.controllers if one.controller), key=lambda i: i.offset
    )
    return [failover.node_id for failover in image.failovers]


@pytest.mark.parametrize(("wal", "is_before_open"), [(CLAIMED, False), (CLAIMED, True), (SHARED, True)])
def test_another_broker_recovers_what_hangs_for_one(
    wal: str, monkeypatch: pytest.MonkeyPatch, *, is_before_open: bool
) -> None:
    """It says that it cannot, and another is asked. What is left behind ends once the device answers, and the
    log is its broker's again."""

    async def main(loop: SimLoop) -> None:
        run = Run(loop, Plan(0, controllers=1, brokers=4, wal=wal))
        keeping, topic_id = await served(run)
        victim = run.brokers[0]
        device = await hung_as_it_goes(run, victim, monkeypatch, is_before_open=is_before_open)
        assert device.hung is not None
        assert holders(run) == [victim.node_id]
        await asyncio.sleep(STALLED_S + GIVEN_UP_S)
        assert not holders(run)
        await write(run, topic_id)
        device.answers.set()
        victim.is_wanted = True
        victim.wake()
        await run.all_up()
        for task in keeping:
            task.cancel()

    run_simulation(main)


def test_a_lock_that_a_hung_recovery_holds_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others find the log in use as long as the device hangs for who opened it; once it answers the log is
    recovered, though nobody waits for that attempt any more."""

    async def main(loop: SimLoop) -> None:
        run = Run(loop, Plan(0, controllers=1, brokers=4, wal=SHARED))
        keeping, topic_id = await served(run)
        victim = run.brokers[0]
        device = await hung_as_it_goes(run, victim, monkeypatch, is_before_open=False)
        await asyncio.sleep(STALLED_S + GIVEN_UP_S)
        assert holders(run) == [victim.node_id]
        device.answers.set()
        await asyncio.sleep(GIVEN_UP_S)
        assert not holders(run)
        await write(run, topic_id)
        for task in keeping:
            task.cancel()

    run_simulation(main)
