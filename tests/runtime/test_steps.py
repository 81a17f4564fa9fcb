"""Steps in line: one a turn, in order, whatever one of them does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from millrace.runtime import steps
from millrace.runtime.steps import StepLine, line_of
from tests.patience import eventually

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def run(loop_factory: Callable[[], asyncio.AbstractEventLoop], what: Awaitable[None]) -> None:
    async def main() -> None:
        await what

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


class Turns:
    """Counts the turns of the running loop from now on, at the place in each at which it was made."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._next()

    def _next(self) -> None:
        self.count += 1
        self._loop.call_soon(self._next)


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_between_two_steps_the_loop_has_a_turn(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Ten tasks that are ready at one time, and calls: of all their steps no two run in one turn, and they
    run in order."""

    async def check() -> None:
        line, turns, ran = StepLine(), Turns(), []

        async def work(number: int) -> None:
            for step in range(2):
                await line.turn()
                ran.append((turns.count, step * 10 + number))

        tasks = [asyncio.create_task(work(number)) for number in range(10)]
        await asyncio.sleep(0)
        for number in range(10):
            line.call(lambda number=number: ran.append((turns.count, 100 + number)))  # type: ignore[misc]
        await asyncio.gather(*tasks)
        assert [name for _, name in ran if name < 100] == [*range(10), *range(10, 20)]
        assert [name for _, name in ran if name >= 100] == [*range(100, 110)]
        when = [turn for turn, _ in ran]
        assert len(set(when)) == len(when)

    run(loop_factory, check())


def test_a_step_whose_task_is_cancelled_and_one_that_fails_hold_nobody_up() -> None:
    """The next in line has its turn all the same, and an idle line asks nothing of the loop."""

    async def check() -> None:
        line, ran = StepLine(), []
        met: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: met.append(context["exception"])
        )
        gone = asyncio.create_task(line.turn())
        await asyncio.sleep(0)
        gone.cancel()

        def fail() -> None:
            raise ValueError("broken")

        line.call(fail)
        line.call(lambda: ran.append("after"))
        line.call(lambda: line.call(lambda: ran.append("from a step")))
        await eventually(lambda: ran == ["after", "from a step"])
        assert [type(error) for error in met] == [ValueError]
        await line.turn()

    run(asyncio.new_event_loop, check())


def test_who_comes_while_a_woken_task_does_its_step_waits_for_the_next_turn() -> None:
    """The line was empty behind the task, and is not for that."""

    async def check() -> None:
        line, turns, ran = StepLine(), Turns(), []
        loop = asyncio.get_running_loop()

        async def work() -> None:
            await line.turn()
            ran.append(turns.count)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)  # the task stands in line
        loop.call_soon(
            lambda: line.call(lambda: ran.append(turns.count))
        )  # right behind the task's being woken
        await task
        await line.turn()
        assert len(set(ran)) == 2, ran

    run(asyncio.new_event_loop, check())


def test_the_processor_is_offered_before_a_step_while_a_durable_write_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not otherwise: whoever else computes here would take a slice of the scheduler's each time."""
    told: list[str] = []
    monkeypatch.setattr(steps, "_offer_processor", lambda: told.append("offered"))

    async def check() -> None:
        line = line_of(asyncio.get_running_loop())
        assert line is line_of(asyncio.get_running_loop())
        line.call(lambda: told.append("step"))
        await line.turn()
        line.begin_write()
        line.call(lambda: told.append("step"))
        line.call(lambda: told.append("step"))
        await eventually(lambda: len(told) == 5)
        assert told == ["step", "offered", "step", "offered", "step"]

    run(uvloop.new_event_loop, check())
