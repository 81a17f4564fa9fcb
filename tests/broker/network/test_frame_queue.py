"""Whose turn is next among connections with frames left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from millrace.broker.network.frame_queue import LINE_S, FrameQueue, Standing
from tests.broker.network.test_loop_share import HEARTBEAT, Slow, answers, beat
from tests.broker.shell import Client, Shell
from tests.patience import eventually

Call = Callable[[str], Callable[[], None]]
LONG, NEW, SHORT, TASK = Standing


def order_of(fill: Callable[[FrameQueue, Call], None], count: int) -> list[str]:
    """The names that were called, in their order, each of which takes an iteration's part: one of them at
    most."""
    called: list[str] = []

    async def run() -> None:
        queue = FrameQueue(lambda: 2 * LINE_S * len(called))
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
            queue.call_soon(f"a{number}", call(f"a{number}"), "a", LONG)
        queue.call_soon("b0", call("b0"), "b", LONG)
        queue.call_soon("b1", call("b1"), "b", LONG)

    assert order_of(fill, 6) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_short_turns_do_not_wait_for_all_others() -> None:
    """Nor new connections, nor tasks; of the same address, too."""

    def fill(queue: FrameQueue, call: Call) -> None:
        for number in range(3):
            for name, standing in (("long", LONG), ("new", NEW), ("task", TASK)):
                queue.call_soon(f"{name}{number}", call(f"{name}{number}"), "a", standing)
        queue.call_soon("short0", call("short0"), "a", SHORT)
        queue.call_soon("short1", call("short1"), "b", SHORT)

    order = order_of(fill, 11)
    assert order[:8] == ["task0", "short0", "new0", "long0", "task1", "short1", "new1", "long1"]
    assert order[8:] == ["task2", "new2", "long2"]


def test_an_iteration_calls_as_many_of_a_class_as_there_is_time_for() -> None:
    """Four of those whose turns take a quarter of the line's part each; of tasks, whose steps come behind,
    one."""
    called: list[str] = []

    async def run() -> None:
        queue = FrameQueue(lambda: 0.26 * LINE_S * len(called))
        for number in range(6):
            queue.call_soon(f"short{number}", partial(called.append, "short"), number, SHORT)
            queue.call_soon(f"task{number}", partial(called.append, "task"), number, TASK)
        counts = [0]
        while len(called) < 12:
            await asyncio.sleep(0)
            if len(called) > counts[-1]:
                counts.append(len(called))
        assert [after - before for before, after in pairwise(counts)] == [1, 4, 1, 2, 1, 1, 1, 1]

    asyncio.run(run())


def test_one_that_is_queued_again_goes_behind_its_address() -> None:
    called: list[str] = []

    async def run() -> None:
        queue = FrameQueue(lambda: 0.0)

        def again(name: str) -> None:
            called.append(name)
            if len(called) < 5:
                queue.call_soon(name, partial(again, name), "a", LONG)

        queue.call_soon("one", partial(again, "one"), "a", LONG)
        queue.call_soon("two", partial(again, "two"), "a", LONG)
        await eventually(lambda: len(called) == 6)

    asyncio.run(run())
    assert called == ["one", "two", "one", "two", "one", "two"]


def test_who_leaves_is_not_waited_for() -> None:
    """Of an address whose others have left the next one is called at once, and nothing is kept of those."""

    def fill(queue: FrameQueue, call: Call) -> None:
        for number in range(100):
            queue.call_soon(f"a{number}", call(f"a{number}"), "a", Standing(number % 4))
        for number in range(99):
            queue.forget(f"a{number}")
        queue.forget("somebody else")
        queue.call_soon("b", call("b"), "b", SHORT)

    assert sorted(order_of(fill, 2)) == ["a99", "b"]


def test_turns_go_on_behind_one_that_all_have_left() -> None:
    called: list[str] = []

    async def run() -> None:
        queue = FrameQueue(lambda: 0.0)
        queue.call_soon("one", partial(called.append, "one"), "a", SHORT)
        queue.forget("one")
        await asyncio.sleep(0)
        queue.call_soon("two", partial(called.append, "two"), "a", SHORT)
        await eventually(lambda: called == ["two"])

    asyncio.run(run())


def test_connections_that_are_gone_hold_up_nobody() -> None:
    """Two hundred connections stand in line for their long turns, and close: one more of their address does
    not wait for as many turns."""
    slow = Slow()
    rounds = [0]

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def look() -> None:
            rounds[0] += 1
            loop.call_soon(look)

        async with Shell({HEARTBEAT: slow.handle}, step_clock=slow.clock) as shell:
            crowd = [await shell.client() for _ in range(200)]
            other = await shell.client()
            for client in (*crowd, other):
                client.send(HEARTBEAT, 4, beat("slow"))
                await answers(client, 1)
            for client in crowd:
                client.writer.write(b"".join(client.frame(HEARTBEAT, 4, beat("slow")) for _ in range(20)))
            await asyncio.sleep(0.05)
            for client in crowd:
                client.writer.transport.abort()
            await eventually(lambda: len(shell.server.connections) == 1)
            look()
            other.send(HEARTBEAT, 4, beat("slow"))
            await answers(other, 1)
            assert rounds[0] < 50

    asyncio.run(run())


def test_nobody_goes_ahead_of_the_line() -> None:
    """A hundred connections with short turns ask again as soon as they are answered, and together for more
    than an iteration has: none of them is far ahead of another."""
    slow = Slow()
    counts = [0] * 100

    async def run() -> None:
        async with Shell({HEARTBEAT: slow.handle}, step_clock=slow.clock) as shell:
            clients = [await shell.client() for _ in counts]

            async def ask(number: int) -> None:
                client = clients[number]
                while min(counts) < 8:
                    client.send(HEARTBEAT, 4, beat("short"))
                    await answers(client, 1)
                    counts[number] += 1
                    assert counts[number] <= min(counts) + 4, counts

            await asyncio.gather(*map(ask, range(len(counts))))

    asyncio.run(run())


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
