"""Attempts at logs whose device gives no answer: they hold up nobody, and are not made twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.quorum.attempts import CLEAN_UP_S, LOOK_S, Attempts
from millrace.broker.quorum.log_recovery import LogUnreachable
from millrace.runtime.disk.watched import DiskWatch
from tests.sim.loop import SimLoop, run_simulation

HUNG, OTHER = 2, 3


class Device:
    """`work` ends when it answers, be it cancelled or not."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.reason = ""
        self.is_held = False

    async def work(self) -> str:
        self.is_held = True
        try:
            await self.answers.wait()
            return "recovered"
        finally:
            await self.answers.wait()
            self.is_held = False


async def well() -> str:
    await asyncio.sleep(3 * LOOK_S)
    return "recovered"


def test_an_attempt_that_hangs_is_left_behind_until_it_ends() -> None:
    """Logs of others are recovered meanwhile; that one is refused at once, and tried again afterwards."""

    async def main(loop: SimLoop) -> None:
        attempts, device = Attempts(), Device()
        made = asyncio.ensure_future(attempts.make(HUNG, device.work(), lambda: device.reason, DiskWatch()))
        await asyncio.sleep(10 * LOOK_S)
        assert not made.done(), "it may end"
        device.reason = "no answer for long"
        with pytest.raises(LogUnreachable, match="no answer for long"):
            await made
        assert device.is_held
        assert await attempts.make(OTHER, well(), str, DiskWatch()) == "recovered"
        began_s = loop.time()
        with pytest.raises(LogUnreachable, match="an attempt of before waits"):
            await attempts.make(HUNG, well(), str, DiskWatch())
        assert loop.time() == began_s
        device.answers.set()
        await asyncio.sleep(0.1)
        assert not device.is_held
        assert await attempts.make(HUNG, well(), str, DiskWatch()) == "recovered"

    run_simulation(main)


def test_who_is_cancelled_waits_for_a_device_for_a_while() -> None:
    """A broker that ends, or is not asked any more: what gives back what it has in time is not left behind;
    and what fails meanwhile is nobody's."""

    async def main(loop: SimLoop) -> None:
        async def failing() -> Any:
            try:
                await asyncio.sleep(1_000)
            finally:
                await asyncio.sleep(CLEAN_UP_S / 2)
                raise ValueError("it cannot be closed")

        attempts, device = Attempts(), Device()
        for work, took_s, is_left in (device.work(), CLEAN_UP_S, True), (failing(), CLEAN_UP_S / 2, False):
            made = asyncio.ensure_future(attempts.make(HUNG, work, str, DiskWatch()))
            await asyncio.sleep(LOOK_S)
            began_s = loop.time()
            made.cancel()
            await asyncio.wait([made])
            assert made.cancelled()
            assert loop.time() - began_s == pytest.approx(took_s)
            assert device.is_held == is_left
            device.answers.set()
            await asyncio.sleep(0.1)

    run_simulation(main)


def test_who_is_cancelled_while_one_is_given_up_leaves_it_behind() -> None:
    """Metadata names another broker in the seconds in which an attempt that hangs may still end."""

    async def main(loop: SimLoop) -> None:
        attempts, device = Attempts(), Device()
        device.reason = "no answer for long"
        made = asyncio.ensure_future(attempts.make(HUNG, device.work(), lambda: device.reason, DiskWatch()))
        await asyncio.sleep(2 * LOOK_S)
        made.cancel()
        await asyncio.wait([made])
        assert made.cancelled()
        assert device.is_held
        with pytest.raises(LogUnreachable, match="an attempt of before waits"):
            await attempts.make(HUNG, well(), str, DiskWatch())
        device.answers.set()
        await asyncio.sleep(0.1)
        assert await attempts.make(HUNG, well(), str, DiskWatch()) == "recovered"

    run_simulation(main)
