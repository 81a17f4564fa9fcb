"""The simulated loop: time that jumps, order that does not follow addresses, and processes that end without a
trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.sim.loop import START_US, Life, SimLoop, SimStalled, own_context, run_simulation


def test_time_jumps_and_sums_do_not_drift() -> None:
    """A million tenths of a second later it is exactly then, and a long sleep takes no time."""

    async def main(loop: SimLoop) -> None:
        await asyncio.sleep(86_400 * 3)
        for _ in range(1000):
            await asyncio.sleep(0.1)
        assert loop.now_us == START_US + (86_400 * 3 + 100) * 1_000_000
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.000_25):
                await loop.create_future()
        assert loop.now_us % 1_000_000 == 250

    run_simulation(main)


def test_no_timer_is_early() -> None:
    """Timers a microsecond apart run a microsecond apart, each at its own time."""
    seen: list[tuple[int, int]] = []

    async def main(loop: SimLoop) -> None:
        for number in range(1, 2000):
            at_us = START_US + 7_000_000 + number
            loop.call_at(at_us / 1e6, lambda at_us=at_us: seen.append((at_us, loop.now_us)))
        await asyncio.sleep(60)

    run_simulation(main)
    assert len(seen) == 1999
    assert all(asked == at for asked, at in seen)


def test_a_task_group_cancels_in_order_of_birth() -> None:
    """The children of a group that fails are cancelled in one order, whatever their addresses are."""

    async def main(loop: SimLoop) -> list[int]:
        cancelled: list[int] = []

        async def child(number: int) -> None:
            try:
                await asyncio.sleep(10)
            finally:
                cancelled.append(number)

        async def parent() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(40):
                    group.create_task(child(number))
                    _ = [object() for _ in range(number % 7)]
                await asyncio.sleep(1)
                raise RuntimeError

        with pytest.raises(ExceptionGroup):
            await parent()
        return cancelled

    assert run_simulation(main) == run_simulation(main)


def test_nothing_to_do_is_no_end() -> None:
    """A run that waits for what nobody will do is stopped, and so is one that goes round without time
    passing."""

    async def wait(loop: SimLoop) -> None:
        await loop.create_future()

    with pytest.raises(SimStalled):
        run_simulation(wait)


def test_a_life_that_is_over_does_nothing_more() -> None:
    """Its tasks do not run on, not even their `finally`; its timers and callbacks are dropped; others go
    on."""
    seen: list[str] = []

    async def main(loop: SimLoop) -> None:
        life = Life("victim")

        async def victim() -> None:
            loop.call_later(1, seen.append, "timer")
            loop.create_task(grandchild())
            try:
                await asyncio.sleep(1)
            finally:
                seen.append("finally")

        async def grandchild() -> None:
            await asyncio.sleep(0.2)
            seen.append("grandchild before")
            await asyncio.sleep(1)
            seen.append("grandchild after")

        task = loop.create_task(victim(), context=own_context(life))
        waiting = asyncio.ensure_future(asyncio.wait([task], timeout=2))
        await asyncio.sleep(0.5)
        loop.end_life(life)
        await waiting
        assert not task.done()
        assert seen == ["grandchild before"]

    run_simulation(main)


def test_a_life_ends_at_any_instant() -> None:
    """Ended by its own code, the rest of that callback still runs, and nothing that it schedules."""
    seen: list[str] = []

    async def main(loop: SimLoop) -> None:
        life = Life("own end")

        async def body() -> None:
            loop.call_soon(seen.append, "scheduled before")
            loop.end_life(life)
            loop.call_soon(seen.append, "scheduled after")
            seen.append("rest")
            await asyncio.sleep(0)
            seen.append("next turn")

        loop.create_task(body(), context=own_context(life))
        await asyncio.sleep(1)

    run_simulation(main)
    assert seen == ["rest"]


def test_what_nobody_took_is_a_problem() -> None:
    """An exception that escapes a callback is kept, and threads are refused."""

    async def main(loop: SimLoop) -> None:
        loop.call_soon(lambda: 1 // 0)
        with pytest.raises(AssertionError):
            await asyncio.to_thread(print)
        await asyncio.sleep(0)
        assert len(loop.problems) == 1
        assert "ZeroDivisionError" in loop.problems[0]

    run_simulation(main)


@pytest.mark.parametrize("is_over", [False, True])
def test_an_exception_whose_taker_was_ended_is_no_problem(is_over: bool) -> None:
    """The process ended between the failure of what it waited for and its own next step."""

    async def main(loop: SimLoop) -> None:
        life = Life("node")

        async def fail() -> None:
            if is_over:
                loop.end_life(life)
            raise ValueError("failed")

        async def start() -> None:
            made.append(loop.create_task(fail()))
            made.append(loop.create_future())
            await asyncio.sleep(10)

        made: list[asyncio.Future[None]] = []
        loop.create_task(start(), context=own_context(life))
        await asyncio.sleep(1)
        made[1].set_exception(ValueError("failed"))
        assert made[0].done()
        made.clear()
        loop._born.clear()
        assert len(loop.problems) == (0 if is_over else 2)

    run_simulation(main)


def test_a_strike_comes_between_two_callbacks() -> None:
    """It runs just before the callback it was planned at, whoever that belongs to, and every callback can be
    met."""
    for turn in range(1, 8):
        seen: list[str] = []

        async def main(loop: SimLoop, turn: int = turn, seen: list[str] = seen) -> int:
            first = loop.turn_count
            loop.strike_at(first + turn, lambda: seen.append("strike"))
            for name in ("a", "b", "c", "d", "e", "f", "g"):
                loop.call_soon(seen.append, name)
            await asyncio.sleep(1)
            return loop.turn_count - first

        assert run_simulation(main) >= 7
        assert seen.index("strike") == turn - 1


def test_a_wait_too_short_to_count_lets_time_pass() -> None:
    """Who waits for the last of a sum of floats does not wait for ever at one time."""

    async def main(loop: SimLoop) -> int:
        due = loop.time() + 0.001
        turns = 0
        while loop.time() < due:
            turns += 1
            await asyncio.sleep(1e-13)
        return turns

    assert 0 < run_simulation(main) <= 1000


def test_a_timer_between_two_microseconds_is_late_not_early() -> None:
    """Who waits until a time finds that it has come."""

    async def main(loop: SimLoop) -> bool:
        due = loop.time() + 0.0012344
        try:
            async with asyncio.timeout_at(due):
                await asyncio.sleep(1)
        except TimeoutError:
            return loop.time() >= due
        return False

    assert run_simulation(main)


def test_a_generator_that_is_left_in_its_middle_is_closed() -> None:
    """Nobody asks it for more, and it ends: its `finally` runs, on the loop."""
    seen: list[str] = []

    async def count() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(1)
            seen.append("closed")

    async def main(loop: SimLoop) -> None:
        async for _ in count():
            break
        await asyncio.sleep(2)
        assert not loop.problems

    run_simulation(main)
    assert seen == ["closed"]


def test_a_life_is_struck_after_so_many_steps_of_its_own() -> None:
    """Those of others do not count, and nothing of it runs any more."""
    steps: list[str] = []

    async def work(name: str) -> None:
        while True:
            steps.append(name)
            await asyncio.sleep(0)

    async def main(loop: SimLoop) -> None:
        life, other = Life("struck"), Life("other")
        loop.strike_in(life, 3, lambda: loop.end_life(life))
        loop.create_task(work("own"), context=own_context(life))
        loop.create_task(work("other"), context=own_context(other))
        for _ in range(10):
            await asyncio.sleep(0)
        assert life.is_over

    run_simulation(main)
    assert steps.count("own") == 3
    assert steps.count("other") > 8
