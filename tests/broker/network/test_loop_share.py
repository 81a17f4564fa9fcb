"""How much connections may begin in one iteration of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from millrace.broker.network.loop_share import (
    ITERATION_S,
    LATE_S,
    SMALL_TURN_BYTES,
    TURN_S,
    LoopShare,
)
from millrace.broker.requests.request import RequestContext
from millrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.broker.shell import Shell
from tests.patience import PATIENCE_S

HEARTBEAT = 12


def test_what_turns_take_is_added_up_until_the_next_iteration() -> None:
    deferred: list[Callable[[], None]] = []
    share = LoopShare(lambda: 0.0, deferred.append)
    share.add(ITERATION_S / 2)
    assert not share.is_spent
    share.add(ITERATION_S / 2)
    assert share.is_spent
    assert len(deferred) == 1
    deferred.pop()()
    assert not share.is_spent


class Slow:
    """Heartbeats of members "slow" take all of a turn each, by the clock of the server, and those of members
    "short" a part of one."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.begun: list[str] = []

    def clock(self) -> float:
        return self.now_s

    def handle(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        self.begun.append(request.member_id)
        self.now_s += 1.5 * TURN_S if request.member_id.startswith("slow") else 0.0
        self.now_s += TURN_S / 4 if request.member_id == "short" else 0.0
        return HeartbeatResponse()

    def note_each_iteration(self, rounds: list[int]) -> None:
        """How many were begun that are not quick, in each iteration of the loop from now on."""
        rounds.append(sum(one != "quick" for one in self.begun))
        asyncio.get_running_loop().call_soon(self.note_each_iteration, rounds)


def beat(member_id: str) -> HeartbeatRequest:
    return HeartbeatRequest("g", 1, member_id)


async def answers(client: Any, count: int) -> None:
    for _ in range(count):
        await asyncio.wait_for(client.receive(HEARTBEAT, 4), PATIENCE_S)


def test_a_connection_whose_requests_take_long_begins_one_an_iteration() -> None:
    """Frames that came together in one read, each of which takes a turn: others are served between any two,
    and nothing is left out."""
    slow = Slow()
    rounds: list[int] = []

    async def run() -> None:
        async with Shell({HEARTBEAT: slow.handle}, step_clock=slow.clock) as shell:
            client, other = await shell.client(), await shell.client()
            client.writer.write(b"".join(client.frame(HEARTBEAT, 4, beat("slow")) for _ in range(20)))
            slow.note_each_iteration(rounds)
            await answers(client, 5)
            other.send(HEARTBEAT, 4, beat("quick"))
            await answers(other, 1)
            place = slow.begun.index("quick")
            await answers(client, 15)
            assert place < 15, "it did not wait for those that were queued"

    asyncio.run(run())
    assert max(after - before for before, after in pairwise(rounds)) == 1


def test_many_connections_together_take_no_more_of_an_iteration() -> None:
    """Each of forty has a large frame that takes a turn, and had a short turn before: a small one of another
    is begun before most of them."""
    slow = Slow()

    async def run() -> None:
        async with Shell({HEARTBEAT: slow.handle}, step_clock=slow.clock) as shell:
            clients = [await shell.client() for _ in range(40)]
            other = await shell.client()
            for client in (*clients, other):
                client.send(HEARTBEAT, 4, beat("quick"))
                await answers(client, 1)
            slow.begun.clear()
            for client in clients:
                client.send(HEARTBEAT, 4, beat("slow" + "w" * SMALL_TURN_BYTES))
            other.send(HEARTBEAT, 4, beat("quick"))
            await answers(other, 1)
            assert slow.begun.index("quick") <= ITERATION_S / TURN_S + 1
            for client in clients:
                await answers(client, 1)

    asyncio.run(run())


@pytest.mark.parametrize("ahead", [[], ["quick"]])
def test_short_turns_are_no_leave_for_long_ones(ahead: list[str]) -> None:
    """Each of a hundred connections had a short turn, and sends a small request of a long one, at the head of
    what it sends or behind a short one: few of them are begun in one iteration."""
    slow = Slow()
    rounds: list[int] = []

    async def run() -> None:
        async with Shell({HEARTBEAT: slow.handle}, step_clock=slow.clock) as shell:
            clients = [await shell.client() for _ in range(100)]
            for client in clients:
                client.send(HEARTBEAT, 4, beat("quick"))
                await answers(client, 1)
            slow.note_each_iteration(rounds)
            for client in clients:
                frames = [client.frame(HEARTBEAT, 4, beat(name)) for name in (*ahead, "slow")]
                client.writer.write(b"".join(frames))
            for client in clients:
                await answers(client, 1 + len(ahead))

    asyncio.run(run())
    assert slow.begun.count("slow") == 100
    most = (ITERATION_S + LATE_S) / (1.5 * TURN_S) + 3
    assert max(after - before for before, after in pairwise(rounds)) <= most


def test_short_turns_of_many_connections_fill_an_iteration_too() -> None:
    """A hundred small requests, each a quarter of a turn, of connections whose turns were as short before."""
    slow = Slow()
    rounds: list[int] = []

    async def run() -> None:
        async with Shell({HEARTBEAT: slow.handle}, step_clock=slow.clock) as shell:
            clients = [await shell.client() for _ in range(100)]
            for client in clients:
                client.send(HEARTBEAT, 4, beat("short"))
                await answers(client, 1)
            slow.note_each_iteration(rounds)
            for client in clients:
                client.send(HEARTBEAT, 4, beat("short"))
            for client in clients:
                await answers(client, 1)

    asyncio.run(run())
    assert len(slow.begun) == 200
    most = ITERATION_S / (TURN_S / 4) + 1  # and one whose turn among those that waited has come
    assert max(after - before for before, after in pairwise(rounds)) <= most
