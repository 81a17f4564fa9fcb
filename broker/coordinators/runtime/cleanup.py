"""Deletions of many records, step by step: what has expired, and what belongs to something that is gone.

Others have the loop between two steps, and no more than a batch of tombstones is in memory and not durable.
What comes to be deleted during a run is found by one more run behind it. Not here: what is to be deleted (the
state machine). Keeps true: tombstones go to the log in the order of decisions, as everything does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millrace.broker.coordinators.runtime.append_queue import AppendQueue
from millrace.broker.coordinators.runtime.deferred import Callback
from millrace.broker.coordinators.runtime.state_machine import Decision
from millrace.runtime.scheduling.yield_queue import YieldQueue

QUEUED_BYTES_MAX = 256 << 10  # not appended yet: beyond it the run goes on when that is durable

Decisions = Callable[[], Iterator[Decision]]


class Cleanup:
    """One kind of them, one run at a time. `carry_out` is the shard's; `on_failed` is told of what must never
    happen."""

    def __init__(
        self,
        decisions: Decisions,
        queue: AppendQueue,
        carry_out: Callable[[Decision], None],
        on_failed: Callable[[BaseException], None],
        yield_queue: YieldQueue,
    ) -> None:
        self._decisions = decisions
        self._queue = queue
        self._carry_out = carry_out
        self._on_failed = on_failed
        self._yield_queue = yield_queue
        self._run: Iterator[Decision] | None = None
        self._is_asked_again = False
        self._durable = Callback(lambda _: self._go_on())

    def begin(self, *, is_urgent: bool) -> None:
        """Begin a run. An urgent one has taken its first step on return; any other decides nothing before the
        next iteration of the loop."""
        if self._run is not None:
            self._is_asked_again = True
            return
        self._run = self._decisions()
        if is_urgent:
            self._step()
        else:
            self._go_on()

    def _go_on(self) -> None:
        self._yield_queue.call_soon(self._step)

    def _step(self) -> None:
        if self._queue.is_ended or self._run is None:
            return
        try:
            decision = next(self._run, None)
            if decision is None:
                self._run = None
                if self._is_asked_again:
                    self._is_asked_again = False
                    self.begin(is_urgent=False)
                return
            self._carry_out(decision)
            if self._queue.queued_bytes > QUEUED_BYTES_MAX:
                self._queue.add([], [(self._durable, None)])
            else:
                self._go_on()
        except Exception as error:
            self._on_failed(error)
