"""A yield queue: one piece an iteration, in order, whatever one of them does; and the durable writes that it
makes way for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from millrace.runtime.scheduling import yield_queue
from millrace.runtime.scheduling.yield_queue import WRITING_S, YieldQueue, run_yielding
from millrace.runtime.scheduling.yielding import Yielding, run_to_end
from tests.patience import eventually

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def run(loop_factory: Callable[[], asyncio.AbstractEventLoop], what: Awaitable[None]) -> None:
    async def main() -> None:
        await what

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


class Iterations:
    """Counts those of the running loop from now on, at the place in each at which it was made."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._next()

    def _next(self) -> None:
        self.count += 1
        self._loop.call_soon(self._next)


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_between_two_pieces_the_loop_has_an_iteration(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Ten tasks that are ready at one time, and calls: of all their pieces no two run in one iteration, and
    they run in order."""

    async def check() -> None:
        queue, iterations, ran = YieldQueue(), Iterations(), []

        async def work(number: int) -> None:
            for round_ in range(2):
                await queue.yield_now()
                ran.append((iterations.count, round_ * 10 + number))

        tasks = [asyncio.create_task(work(number)) for number in range(10)]
        await asyncio.sleep(0)
        for number in range(10):
            queue.call_soon(lambda number=number: ran.append((iterations.count, 100 + number)))  # type: ignore[misc]
        await asyncio.gather(*tasks)
        assert [name for _, name in ran if name < 100] == [*range(10), *range(10, 20)]
        assert [name for _, name in ran if name >= 100] == [*range(100, 110)]
        when = [iteration for iteration, _ in ran]
        assert len(set(when)) == len(when)

    run(loop_factory, check())


def test_a_task_that_is_cancelled_and_a_callback_that_fails_hold_nobody_up() -> None:
    """The next in the queue runs all the same, and an empty queue asks nothing of the loop."""

    async def check() -> None:
        queue, ran = YieldQueue(), []
        met: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: met.append(context["exception"])
        )
        gone = asyncio.create_task(queue.yield_now())
        await asyncio.sleep(0)
        gone.cancel()

        def fail() -> None:
            raise ValueError("broken")

        queue.call_soon(fail)
        queue.call_soon(lambda: ran.append("after"))
        queue.call_soon(lambda: queue.call_soon(lambda: ran.append("from a piece")))
        await eventually(lambda: ran == ["after", "from a piece"])
        assert [type(error) for error in met] == [ValueError]
        await queue.yield_now()

    run(asyncio.new_event_loop, check())


def test_who_comes_while_a_woken_task_does_its_piece_waits_for_the_next_iteration() -> None:
    """The queue was empty behind the task, and is not for that."""

    async def check() -> None:
        queue, iterations, ran = YieldQueue(), Iterations(), []
        loop = asyncio.get_running_loop()

        async def work() -> None:
            await queue.yield_now()
            ran.append(iterations.count)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)  # the task is queued
        loop.call_soon(
            lambda: queue.call_soon(lambda: ran.append(iterations.count))
        )  # right behind the task's being woken
        await task
        await queue.yield_now()
        assert len(set(ran)) == 2, ran

    run(asyncio.new_event_loop, check())


def test_the_processor_is_offered_before_a_piece_while_a_durable_write_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not otherwise: whoever else computes here would take a time slice each time."""
    told: list[str] = []
    monkeypatch.setattr(yield_queue, "_offer_processor", lambda: told.append("offered"))

    async def check() -> None:
        queue = YieldQueue()
        queue.call_soon(lambda: told.append("piece"))
        await queue.yield_now()
        queue.writes.begin()
        queue.call_soon(lambda: told.append("piece"))
        queue.call_soon(lambda: told.append("piece"))
        await eventually(lambda: len(told) == 5)
        assert told == ["piece", "offered", "piece", "offered", "piece"]

    run(uvloop.new_event_loop, check())


def test_two_queues_on_one_loop_know_nothing_of_each_other() -> None:
    """No state is the loop's: each orders what it is handed to, and its own disks' writes."""

    async def check() -> None:
        one, other = YieldQueue(), YieldQueue()
        one.writes.begin()
        assert one.writes.is_writing
        assert not other.writes.is_writing
        ran: list[str] = []
        for _ in range(3):
            one.call_soon(lambda: ran.append("one"))
        other.call_soon(lambda: ran.append("other"))
        await other.yield_now()
        assert ran.index("other") == 1

    run(asyncio.new_event_loop, check())


def test_a_write_counts_for_a_second_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers stay gentle between the writes of a log that is busy."""

    async def check() -> None:
        writes, loop = YieldQueue().writes, asyncio.get_running_loop()
        now_s = 100.0
        monkeypatch.setattr(loop, "time", lambda: now_s)
        assert not writes.is_writing
        writes.begin()
        writes.begin()
        writes.end()
        now_s += 2 * WRITING_S
        assert writes.is_writing
        writes.end()
        assert writes.is_writing
        now_s += WRITING_S
        assert not writes.is_writing
        monkeypatch.undo()

    run(asyncio.new_event_loop, check())


def test_what_yields_comes_to_the_same_with_others_between_and_without() -> None:
    """The caller yields as often as the generator stops."""

    def numbers() -> Yielding[int]:
        total = 0
        for number in range(4):
            total += number
            yield
        return total

    async def check() -> None:
        yields = 0

        async def yield_now() -> None:
            nonlocal yields
            yields += 1

        assert await run_yielding(numbers(), yield_now) == 6
        assert yields == 4
        assert await run_yielding(numbers()) == 6

    assert run_to_end(numbers()) == 6
    run(asyncio.new_event_loop, check())
