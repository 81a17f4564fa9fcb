"""Background tasks under supervision: each has a name, and what an escaping exception does is said where it
is started.

Two sorts. A task with `on_escape` runs once: what escapes is handed over, and usually ends the process. A
task without is a loop that must go on: what escapes is logged, counted, and the task is started again after a
delay that doubles. `stop` cancels in reverse order of starting and waits. A task that returns is simply over,
and so is one that fails once it was cancelled.

Not a task per request: those are futures. Nothing is started at import, and nothing outlives `stop`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from millrace.runtime.errors import Closed
from millrace.runtime.metrics import Counter

Work = Callable[[], Awaitable[None]]
OnEscape = Callable[[str, BaseException], None]

RESTART_DELAY_MIN_S = 0.1
RESTART_DELAY_MAX_S = 30.0
# A task that ran this long has recovered: its next failure starts again from the shortest delay.
_SOUND_RUN_S = 60.0

_log = logging.getLogger("millrace.tasks")


class Tasks:
    """One component's background tasks. `escapes` counts the restarts of all of them."""

    def __init__(self, escapes: Counter | None = None) -> None:
        self._escapes = escapes if escapes is not None else Counter()
        self._running: dict[asyncio.Task[None], str] = {}  # in order of starting
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"Tasks({', '.join(self._running.values())})"

    def start(self, name: str, work: Work, *, on_escape: OnEscape | None = None) -> asyncio.Task[None]:
        """`work` is called for each run, so that a restart begins afresh. Raises Closed after `stop`."""
        if self._is_stopped:
            raise Closed(name)
        run = self._run_for_ever(name, work) if on_escape is None else self._run_once(name, work, on_escape)
        task = asyncio.get_running_loop().create_task(run, name=name)
        self._running[task] = name
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.critical("background task %s: its on_escape raised", task.get_name(), exc_info=error)

    async def _run_once(self, name: str, work: Work, on_escape: OnEscape) -> None:
        try:
            await work()
        except Exception as error:
            on_escape(name, error)

    async def _run_for_ever(self, name: str, work: Work) -> None:
        loop, own = asyncio.get_running_loop(), asyncio.current_task()
        delay_s = RESTART_DELAY_MIN_S
        while True:
            began = loop.time()
            try:
                await work()
                return
            except Exception as error:
                if own is not None and own.cancelling():
                    _log.error("background task %s failed as it ended", name, exc_info=error)
                    return  # what its cleaning up raised took the place of being cancelled
                if loop.time() - began > _SOUND_RUN_S:
                    delay_s = RESTART_DELAY_MIN_S
                self._escapes.inc()
                _log.error(
                    "background task %s failed; it starts again in %.1f s", name, delay_s, exc_info=error
                )
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RESTART_DELAY_MAX_S)

    async def stop(self) -> None:
        """Cancels all, the newest first, each waited for before the next. Idempotent."""
        self._is_stopped = True
        own = asyncio.current_task()
        for task in reversed(list(self._running)):
            if task is own:
                continue
            task.cancel()
            await asyncio.wait([task])
