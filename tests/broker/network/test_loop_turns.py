"""When the tasks of requests take their steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from millrace.broker.network.loop_share import ITERATION_S
from millrace.broker.network.loop_turns import LoopTurns
from millrace.broker.requests.request import RequestContext
from millrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.broker.network.test_loop_share import HEARTBEAT, beat
from tests.broker.shell import Shell
from tests.patience import PATIENCE_S

STEPS_MAX = 4  # of an iteration, each a quarter of what it may have


class Handler:
    """Its requests are answered by tasks, whose first steps take a quarter of an iteration each, by the clock
    of the server, and which then wait for an iteration."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.begun: list[str] = []

    def clock(self) -> float:
        return self.now_s

    async def handle(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        self.begun.append(request.member_id)
        self.now_s += ITERATION_S / STEPS_MAX
        await asyncio.sleep(0)
        return HeartbeatResponse()


def test_tasks_of_many_connections_begin_in_many_iterations() -> None:
    handler = Handler()
    begun_counts: list[int] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def look() -> None:
            begun_counts.append(len(handler.begun))
            loop.call_soon(look)

        async with Shell({HEARTBEAT: handler.handle}, step_clock=handler.clock) as shell:
            clients = [await shell.client() for _ in range(30)]
            look()
            for number, client in enumerate(clients):
                client.send(HEARTBEAT, 4, beat(str(number)))
            for client in clients:
                await asyncio.wait_for(client.receive(HEARTBEAT, 4), PATIENCE_S)

    asyncio.run(run())
    assert len(handler.begun) == 30
    steps = [after - before for before, after in pairwise(begun_counts)]
    assert max(steps) <= STEPS_MAX + 1, steps  # one whose turn has come, and those that the rest has room for


def run_turns(work: Callable[[LoopTurns], Any]) -> Any:
    async def run() -> Any:
        turns = LoopTurns(lambda: 0.0, asyncio.get_running_loop().call_soon)
        return await asyncio.wait_for(work(turns), PATIENCE_S)

    return asyncio.run(run())


def test_what_steps_come_to_is_handed_on() -> None:
    async def work(turns: LoopTurns) -> None:
        async def steps() -> str:
            await asyncio.sleep(0)
            return "done"

        async def fails() -> str:
            await asyncio.sleep(0)
            raise ValueError("no")

        assert await turns.begin(steps(), "a") == "done"
        with pytest.raises(ValueError, match="no"):
            await turns.begin(fails(), "a")

    run_turns(work)


def test_steps_are_cancelled_where_they_wait() -> None:
    async def work(turns: LoopTurns) -> None:
        seen = []

        async def steps() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                seen.append("cancelled")
                await asyncio.sleep(0)  # what is put in order may wait too
                seen.append("in order")
                raise

        async def task() -> None:
            await turns.begin(steps(), "a")

        running = asyncio.get_running_loop().create_task(task())
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert seen == ["cancelled", "in order"]

    run_turns(work)


def test_who_is_cancelled_before_its_turn_never_begins() -> None:
    async def work(turns: LoopTurns) -> None:
        seen = []

        async def steps() -> None:
            seen.append("begun")

        async def task() -> None:
            await turns.begin(steps(), "a")

        running = asyncio.get_running_loop().create_task(task())
        turns.share.add(ITERATION_S)  # until the next iteration, in which the task would begin
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        for _ in range(4):
            await asyncio.sleep(0)
        assert not seen

    run_turns(work)
