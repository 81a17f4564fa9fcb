"""An event loop with virtual time: it jumps to the next deadline and never sleeps; production code runs on it
unchanged.

Three things make a run replayable. Time is whole microseconds, so that sums do not drift. Tasks and futures
are hashed by birth order, since `TaskGroup` and `asyncio.wait` walk sets, whose order else follows memory
addresses. There are no threads: `run_in_executor` refuses.

A `Life` is one run of one process, from its start to its kill. Whatever a life's code schedules belongs to it
(a context variable carries it through tasks, timers and callbacks), so `end_life` can stop a process at any
await as a power cut does: nothing of it runs again, no `finally`, no `except CancelledError`. Its tasks are
kept, unfinalized, until the loop ends: a coroutine that is freed would run its `finally` then.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
START_US = 1_000_000_000
TURNS_MAX = 1_000_000  # of the loop without time passing: more is a circle


class SimStalled(Exception):
    """Nothing is scheduled, and the run is not over; or it runs in a circle without time passing."""


class Life:
    """One run of one process. `is_over` is set by `SimLoop.end_life` alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_over = False

    def __repr__(self) -> str:
        return f"{self.name}{' (over)' if self.is_over else ''}"


LIFE: ContextVar[Life | None] = ContextVar("LIFE", default=None)


def own_context(life: Life | None) -> Context:
    """A context in which everything belongs to `life` (None: to the run itself)."""
    context = copy_context()
    context.run(LIFE.set, life)
    return context


class _Numbered:
    """Hashed by the order in which the loop's tasks and futures were first looked at: for a task that is when
    it is made."""

    _number = 0
    life: Life | None = None

    def __hash__(self) -> int:
        if not self._number:
            self._number = next(self.get_loop().births)  # type: ignore[attr-defined]
        return self._number


class SimFuture(_Numbered, asyncio.Future[Any]):
    pass


class SimTask(_Numbered, asyncio.Task[Any]):
    pass


class SimHandle:
    """A callback that is scheduled: what asyncio.Handle and TimerHandle are to others, without their
    debugging."""

    __slots__ = ("args", "callback", "context", "due_us", "is_cancelled", "loop")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.is_cancelled = False
        self.loop: SimLoop | None = None  # where it waits for its time
        self.due_us = 0

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.callback, self.args = _nothing, ()
            if self.loop is not None:
                self.loop.cancelled_count += 1

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.due_us / 1e6


def _nothing() -> None:
    pass


class SimLoop(asyncio.BaseEventLoop):
    """`problems` collects what asyncio would only log: exceptions that nobody took.

    Scheduling and the iteration of the loop are those of BaseEventLoop without what a simulation has no use
    for (files, threads, debugging): they are half of what a run costs.
    """

    _ready: deque[SimHandle]
    _scheduled: list[tuple[int, int, SimHandle]]  # due, number, what
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self.get_debug = bool  # type: ignore[method-assign]  # False: each future asks for it
        self.now_us = START_US
        self.problems: list[str] = []
        self._turns_now = 0  # without time passing
        self.births = itertools.count(1)
        self.cancelled_count = 0  # of the timers that wait
        self._timers = itertools.count(1)
        self._born: list[SimTask] = []
        self._prune_at = 1000
        self._is_ended = False
        self.turn_count = 0
        self._frozen: Life | None = None
        self._held: list[SimHandle] = []  # of the frozen life: due, and not run
        self._strikes: dict[int, Callable[[], None]] = {}
        self._strike_at = -1
        self._strike_context = own_context(None)
        self._steps_left: dict[Life, list[tuple[int, Callable[[], None]]]] = {}  # of lives to be struck

    # Time and order.

    def time(self) -> float:
        return self.now_us / 1e6

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        due_us, now_us = round(when * 1e6), self.now_us
        # Who looks at the clock then must not find that it is not yet time, for ever.
        if due_us / 1e6 < when - 1e-9 or (due_us == now_us and when > now_us / 1e6):
            due_us += 1
        if context is None:
            context = copy_context()
        handle = SimHandle(callback, args, context)
        handle.due_us = due_us
        life = context.get(LIFE)
        if self._is_ended or (life is not None and life.is_over):
            handle.cancel()
        else:
            handle.loop = self
            heapq.heappush(self._scheduled, (due_us, next(self._timers), handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        """Time passes on each wait, however short: what is left of a sum of floats else waits for ever."""
        wait_s = max(delay, 1e-6) if delay > 0 else delay
        return self.call_at(self.now_us / 1e6 + wait_s, callback, *args, context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        if context is None:
            context = copy_context()
        handle = SimHandle(callback, args, context)
        life = context.get(LIFE)
        if self._is_ended or (life is not None and life.is_over):
            handle.cancel()
            return handle
        self.turn_count += 1
        if self.turn_count == self._strike_at:
            strike = self._strikes.pop(self._strike_at)
            self._strike_at = min(self._strikes, default=-1)
            self._ready.append(SimHandle(strike, (), self._strike_context))
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        """There are no threads; asyncio itself calls this for a generator that was left in its middle."""
        return self.call_soon(callback, *args, context=context)

    def _run_once(self) -> None:
        """Turns, until the loop is to stop. In one all that is due, in order; where nothing is ready, time
        jumps to the next timer."""
        ready, scheduled = self._ready, self._scheduled
        while True:
            cancelled_count = self.cancelled_count
            if cancelled_count and (scheduled[0][2].is_cancelled or 2 * cancelled_count > len(scheduled)):
                self._forget_cancelled()
            if ready or self._stopping:
                self._turns_now += 1
            elif not scheduled:
                raise SimStalled("nothing is scheduled")
            elif (due_us := scheduled[0][0]) > self.now_us:
                self._turns_now, self.now_us = 0, due_us
            else:
                self._turns_now += 1
            if self._turns_now > TURNS_MAX:
                raise SimStalled(f"{TURNS_MAX} turns at {self.now_us} us")
            now_us = self.now_us
            while scheduled and scheduled[0][0] <= now_us:
                timer = heapq.heappop(scheduled)[2]
                timer.loop = None
                if timer.is_cancelled:
                    self.cancelled_count -= 1
                else:
                    ready.append(timer)
            self._run_ready(len(ready))
            if self._stopping:
                return

    def _run_ready(self, count: int) -> None:
        popleft = self._ready.popleft
        for _ in range(count):
            handle = popleft()
            if handle.is_cancelled:
                continue
            context = handle.context
            if self._frozen is not None and context.get(LIFE) is self._frozen:
                self._held.append(handle)
                continue
            if self._steps_left and self._is_struck(context.get(LIFE)):
                continue
            try:
                context.run(handle.callback, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler(
                    {"message": f"Exception in callback {handle.callback!r}", "exception": error}
                )

    def _forget_cancelled(self) -> None:
        """Timers that were cancelled, of which there are some: those at the head, and all when they are
        most."""
        scheduled = self._scheduled
        if len(scheduled) > 100 and self.cancelled_count * 2 > len(scheduled):
            scheduled[:] = [timer for timer in scheduled if not timer[2].is_cancelled]
            heapq.heapify(scheduled)
            self.cancelled_count = 0
        while scheduled and scheduled[0][2].is_cancelled:
            self.cancelled_count -= 1
            heapq.heappop(scheduled)[2].loop = None

    def strike_at(self, turn: int, strike: Callable[[], None]) -> None:
        """Calls `strike` just before the callback that is the `turn`-th of those scheduled to run soon:
        between any two steps of any task."""
        if turn > self.turn_count:
            self._strikes[turn] = strike
            self._strike_at = min(self._strikes)

    def strike_in(self, life: Life, steps: int, strike: Callable[[], None]) -> None:
        """Calls `strike` before the life's next callback but so many: between any two steps of its tasks."""
        self._steps_left.setdefault(life, []).append((steps, strike))

    def _is_struck(self, life: Life | None) -> bool:
        """Of a callback of that life which is to run: whether the life has ended at it."""
        if life is None or life not in self._steps_left:
            return False
        waiting = [(steps - 1, strike) for steps, strike in self._steps_left.pop(life)]
        left = [one for one in waiting if one[0] >= 0]
        if left:
            self._steps_left[life] = left
        for steps, strike in waiting:
            if steps < 0 and not life.is_over:
                self._strike_context.copy().run(strike)
        return life.is_over

    def create_future(self) -> SimFuture:
        future = SimFuture(loop=self)
        future.life = LIFE.get()
        return future

    def create_task(self, coro: Any, **options: Any) -> SimTask:
        task = SimTask(coro, loop=self, **options)
        context = options.get("context")
        task.life = LIFE.get() if context is None else context.get(LIFE)
        self._born.append(task)
        if len(self._born) > self._prune_at:
            self._born = [task for task in self._born if not task.done()]
            self._prune_at = 1000 + 2 * len(self._born)
        return task

    # Lives.

    def freeze(self, life: Life) -> None:
        """Nothing of it runs until `thaw`: the process is stopped, or its machine. One at a time."""
        assert self._frozen is None, self._frozen
        self._frozen = life

    def thaw(self) -> None:
        """It goes on with all that has become due meanwhile."""
        self._ready.extend(self._held)
        self._frozen, self._held = None, []

    def end_life(self, life: Life) -> None:
        """Nothing of it runs again, but for what remains of the callback that called this."""
        if life is self._frozen:
            self.thaw()
        life.is_over = True
        self._steps_left.pop(life, None)
        for handle in itertools.chain(self._ready, (timer[2] for timer in self._scheduled)):
            if handle.context.get(LIFE) is life:
                handle.cancel()

    # The end.

    def end(self) -> None:
        """Closes the loop and every coroutine that was abandoned, in order of birth; what their `finally`
        schedules comes to nothing, and what they log of it is not heard."""
        self._is_ended = True
        logging.disable()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of those that came to no step before a strike
            for task in self._born:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    with contextlib.suppress(BaseException):
                        task.get_coro().close()
        logging.disable(logging.NOTSET)
        self._born.clear()
        self.close()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        made = context.get("future")
        if isinstance(made, _Numbered) and made.life is not None and made.life.is_over:
            return  # whoever was to take it does not run any more
        if not self._is_ended:
            error = context.get("exception")
            self.problems.append(f"{context.get('message')}: {error!r}")

    # What BaseEventLoop leaves to its heirs, and what must not happen here.

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        if not self._is_ended:
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        raise AssertionError(f"{func} would run in a thread")


def run_simulation(main: Callable[[SimLoop], Coroutine[Any, Any, T]]) -> T:
    """Runs `main` on a loop of its own. What it leaves running is abandoned."""
    loop = SimLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.end()
