"""Whose turn is next among connections with frames left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from millrace.broker.network.frame_queue import FrameQueue
from tests.broker.network.test_loop_share import HEARTBEAT, Slow, answers, beat
from tests.broker.shell import Client, Shell
from tests.patience import eventually

Call = Callable[[str], Callable[[], None]]


def order_of(fill: Callable[[FrameQueue, Call], None], count: int) -> list[str]:
    """The names that were called, in their order; one an iteration of the loop at most."""
    called: list[str] = []

    async def run() -> None:
        queue = FrameQueue()
        fill(queue, lambda name: partial(called.append, name))
        while len(called) < count:
            before = len(called)
            await asyncio.sleep(0)
            assert len(called) <= before + 1

    asyncio.run(run())
    return called


def test_addresses_take_turns() -> None:
    """Whoever comes last, of an address that has nobody in the line, is next but one."""

    def fill(queue: FrameQueue, call: Call) -> None:
        for number in range(4):
            queue.call_soon(call(f"a{number}"), "a", is_short=False)
        queue.call_soon(call("b0"), "b", is_short=False)
        queue.call_soon(call("b1"), "b", is_short=False)

    assert order_of(fill, 6) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_short_turns_do_not_wait_for_all_that_are_long() -> None:
    """Of the same address, too: a new connection is one of those."""

    def fill(queue: FrameQueue, call: Call) -> None:
        for number in range(4):
            queue.call_soon(call(f"long{number}"), "a", is_short=False)
        queue.call_soon(call("new"), "a", is_short=True)
        queue.call_soon(call("other"), "b", is_short=True)

    assert order_of(fill, 6) == ["new", "long0", "other", "long1", "long2", "long3"]


def test_one_that_is_queued_again_goes_behind_its_address() -> None:
    called: list[str] = []

    async def run() -> None:
        queue = FrameQueue()

        def again(name: str) -> None:
            called.append(name)
            if len(called) < 5:
                queue.call_soon(partial(again, name), "a", is_short=False)

        queue.call_soon(partial(again, "one"), "a", is_short=False)
        queue.call_soon(partial(again, "two"), "a", is_short=False)
        await eventually(lambda: len(called) == 6)

    asyncio.run(run())
    assert called == ["one", "two", "one", "two", "one", "two"]


def test_one_of_another_address_does_not_wait_for_a_crowd() -> None:
    """Thirty connections have requests that take a turn each, and so has one of another address: between any
    two of its turns one of them goes on, not all."""
    slow = Slow()

    async def run() -> None:
        async with Shell({HEARTBEAT: slow.handle}, step_clock=slow.clock) as shell:
            crowd = [await shell.client() for _ in range(30)]
            place = ("127.0.0.2", 0)
            other = Client(*await asyncio.open_connection("127.0.0.1", shell.port, local_addr=place))
            for client in (*crowd, other):
                client.send(HEARTBEAT, 4, beat("slow"))
                await answers(client, 1)
            slow.begun.clear()
            for client in crowd:
                client.writer.write(b"".join(client.frame(HEARTBEAT, 4, beat("slow")) for _ in range(20)))
            other.writer.write(b"".join(other.frame(HEARTBEAT, 4, beat("slow other")) for _ in range(3)))
            await answers(other, 3)
            first, _, last = [place for place, name in enumerate(slow.begun) if name == "slow other"]
            assert last - first <= 6, slow.begun
            for client in crowd:
                await answers(client, 20)
            other.close()

    asyncio.run(run())
