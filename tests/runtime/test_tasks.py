"""Supervised tasks: what escapes is handed over or counted and retried, and stopping leaves nothing
behind."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from millrace.runtime import tasks as tasks_module
from millrace.runtime.errors import Closed
from millrace.runtime.metrics import Counter
from millrace.runtime.tasks import Tasks
from tests.patience import PATIENCE_S, eventually


def test_an_escape_is_handed_over_once() -> None:
    """A task with on_escape runs once; its exception arrives with the task's name."""

    async def run() -> None:
        tasks, escaped = Tasks(), []

        async def work() -> None:
            raise ValueError("broken")

        tasks.start("uploader", work, on_escape=lambda name, error: escaped.append((name, str(error))))
        await eventually(lambda: repr(tasks) == "Tasks()")
        assert escaped == [("uploader", "broken")]

    asyncio.run(run())


def test_a_loop_is_started_again_with_growing_delays(caplog: pytest.LogCaptureFixture) -> None:
    """Without on_escape the task begins afresh after each failure, later each time, and every escape is
    counted."""

    async def run() -> None:
        escapes, began = Counter(), []
        tasks = Tasks(escapes)
        loop = asyncio.get_running_loop()

        async def work() -> None:
            began.append(loop.time())
            if len(began) < 3:
                raise ValueError("broken")

        await tasks.start("retention", work)
        assert escapes.value == 2
        gaps = [later - earlier for earlier, later in itertools.pairwise(began)]
        assert gaps[0] >= 0.09
        assert gaps[1] >= 1.9 * tasks_module.RESTART_DELAY_MIN_S

    asyncio.run(run())
    assert sum("retention failed" in record.message for record in caplog.records) == 2


def test_stop_cancels_the_newest_first_and_waits() -> None:
    """Each task has finished its cleaning up before the next older one is cancelled; nothing starts
    afterwards."""

    async def run() -> None:
        tasks, order = Tasks(), []

        async def work(name: str) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.01)
                order.append(name)

        for name in ("first", "second", "third"):
            tasks.start(name, lambda name=name: work(name))
        await asyncio.sleep(0)
        assert repr(tasks) == "Tasks(first, second, third)"
        await tasks.stop()
        assert order == ["third", "second", "first"]
        with pytest.raises(Closed):
            tasks.start("late", lambda: work("late"))
        await tasks.stop()

    asyncio.run(run())


def test_a_loop_whose_cleaning_up_fails_is_stopped_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """What that raises takes the place of the cancellation: it is told, and the loop is not started again,
    which would be waited for without an end."""

    async def run() -> None:
        escapes, runs = Counter(), 0
        tasks = Tasks(escapes)

        async def work() -> None:
            nonlocal runs
            runs += 1
            try:
                await asyncio.sleep(1e6)
            finally:
                raise ValueError("the device is gone")

        tasks.start("looks", work)
        await eventually(lambda: runs == 1)
        async with asyncio.timeout(PATIENCE_S):
            await tasks.stop()
        assert (runs, escapes.value, repr(tasks)) == (1, 0, "Tasks()")

    asyncio.run(run())
    assert [record.message for record in caplog.records] == ["background task looks failed as it ended"]


def test_a_task_may_stop_the_others() -> None:
    """A task that calls stop is not cancelled by itself."""

    async def run() -> None:
        tasks, seen = Tasks(), []

        async def sleeper() -> None:
            await asyncio.sleep(60)

        async def stopper() -> None:
            await tasks.stop()
            seen.append("done")

        tasks.start("sleeper", sleeper)
        await tasks.start("stopper", stopper)
        assert seen == ["done"]

    asyncio.run(run())
