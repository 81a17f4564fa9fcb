"""One shard of a coordinator at work: load, then decide, append, and release what waited for the append.

    loading --the log was read--> serving --an append failed, or the partition is led elsewhere--> ended

Not here: what is decided (a StateMachine), batches (append_queue.py), which shards there are (shards.py).
Keeps true:
  * nothing is answered that depends on a record that is not durable, or that another owner's could replace;
  * nothing is decided before the log was read to its end;
  * a shard that ends answers everybody; its successor reads the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from millrace.broker.coordinators.runtime.append_queue import AppendQueue, Deferred
from millrace.broker.coordinators.runtime.cleanup import Cleanup, Decisions
from millrace.broker.coordinators.runtime.deferred import Callback, Outcome
from millrace.broker.coordinators.runtime.log_reader import read_log
from millrace.broker.coordinators.runtime.log_rewriter import LogRewriter
from millrace.broker.coordinators.runtime.state_machine import (
    NEVER_MS,
    Decision,
    DeferredEvent,
    Now,
    Reply,
    StateMachine,
)
from millrace.broker.coordinators.runtime.timers import Timers
from millrace.broker.coordinators.runtime.unknown_records import UnknownRecords
from millrace.broker.partitions.meta_stream import Room
from millrace.broker.partitions.partition import Partition
from millrace.broker.state_memory import StateMemory
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.records import Record
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Closed, Fenced, in_words
from millrace.runtime.scheduling.yield_queue import YieldQueue

log = logging.getLogger(__name__)

R = TypeVar("R")
M = TypeVar("M", bound=StateMachine)

QUEUED_BYTES_MAX = 16 << 20  # more than this not appended yet: whoever asks is told to try again
LOAD_WAIT_S = 10.0  # whoever waits longer for a load is told to try again
WAITING_MAX = 10_000  # requests that wait for a load
WAITING_PER_ITERATION = 50  # of them are served in one iteration of the loop
TIMERS_PER_ITERATION = 500  # that are due together: the rest in the next iteration of the loop
RETENTION = "retention"  # the kind of cleanup that the runtime begins at its interval


@dataclass(frozen=True, slots=True)
class ShardParts:
    """What all shards of a coordinator share.

    `room` is what coordinators have before data; `data_room` what all have, and a rewrite of the log waits
    for. `retention_clock` is the one by which states expire (broker/identity/known_time.py). `on_failed` is
    told of what must never happen: the process ends.
    """

    room: Room
    data_room: Room
    clock: Clock
    retention_clock: Clock
    cleanup_interval_ms: int
    memory: StateMemory
    on_failed: Callable[[BaseException], None]
    yield_queue: YieldQueue  # for loads, and deletions of many records


class ShardRuntime(Generic[M]):
    """`name` is the partition's, for the log. `on_ended` is told once."""

    def __init__(
        self, name: str, machine: M, parts: ShardParts, on_ended: Callable[[ShardRuntime[M]], None]
    ) -> None:
        self.name = name
        self.machine = machine
        self.unknown = UnknownRecords(parts.memory)
        self.partition: Partition | None = None
        self.is_ended = False
        self._parts = parts
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._queue: AppendQueue | None = None
        self._rewriter: LogRewriter | None = None
        self._cleanups: dict[str, Cleanup] = {}  # by kind
        # For the load: to run, or to refuse.
        self._waiting: deque[tuple[Callable[[], None], Callable[[int], None]]] = deque()
        self._is_slow_to_load = False
        self._timers = Timers()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER_MS
        self._cleanup_ms = NEVER_MS
        self._on_event_durable = Callback(self._release_event)

    def __repr__(self) -> str:
        state = "ended" if self.is_ended else "loading" if self.partition is None else repr(self.partition)
        return f"{self.machine!r}, {state}"

    # -- loading

    async def load(self, partition: Partition, on_loaded: Callable[[ShardRuntime[M]], None]) -> None:
        """Read the log, call `on_loaded`, then serve those who wait. Raises what reads raise."""
        try:
            read_bytes = await read_log(partition, self._apply, self._parts.yield_queue.yield_now)
            for decision in self.machine.on_loaded(self.now()):
                for key, due_ms in decision.timers:
                    if due_ms < NEVER_MS:
                        self._timers.set(key, due_ms)
                await self._parts.yield_queue.yield_now()
                if self.is_ended:
                    break
        finally:
            if self.is_ended:
                self._release_memory()
        if self.is_ended:
            return
        self._tell_unknown()
        self.partition = partition
        parts = self._parts
        queue = AppendQueue(
            partition, parts.room, parts.clock, self._on_durable, self.end_after, parts.on_failed
        )
        self._queue = queue
        self._rewriter = LogRewriter(
            self.machine,
            self.unknown,
            partition,
            queue,
            parts.data_room,
            parts.clock,
            read_bytes,
            self._loop.call_soon,
        )
        self._cleanup_ms = self.now().tick_ms + parts.cleanup_interval_ms
        self._arm_timer()
        on_loaded(self)
        self._rewriter.begin_if_due()
        self._serve_waiting()

    def _apply(self, record: Record) -> None:
        if self.machine.apply(record):
            self.unknown.forget((record,))
        else:
            self.unknown.keep(record)

    def _tell_unknown(self) -> None:
        if not self.unknown.is_complete:
            log.warning(
                "coordinator shard %s loaded: too many records of unknown types to keep in memory: its log "
                "grows, and is rewritten"
                " again after an upgrade to the release that wrote them",
                self.name,
            )
        elif self.unknown:
            types = ", ".join(f"type {kind} ({count})" for kind, count in self.unknown.counts().items())
            log.warning(
                "coordinator shard %s loaded: %d records of unknown types kept for the release that wrote "
                "them: %s",
                self.name,
                len(self.unknown),
                types,
            )

    def _serve_waiting(self) -> None:
        """Those who waited for the load, in order, some in each iteration of the loop: who asks meanwhile
        waits behind them."""
        now = [self._waiting.popleft() for _ in range(min(WAITING_PER_ITERATION, len(self._waiting)))]
        for run, _ in now:
            run()
        if self._waiting:
            self._loop.call_soon(self._serve_waiting)

    def on_slow_load(self) -> None:
        """Whoever waits for the load has waited long enough, and so has whoever comes before it is done."""
        self._is_slow_to_load = self.partition is None
        if not self._is_slow_to_load:
            return
        waiting, self._waiting = self._waiting, deque()
        for _, refuse in waiting:
            refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    # -- being asked

    @property
    def is_loading(self) -> bool:
        return self.partition is None and not self.is_ended

    def ask(self, act: Callable[[ShardRuntime[M]], Outcome[R]], refuse: Callable[[int], R]) -> Outcome[R]:
        """Run `act` now, or in its order when the log is read; or the refusal with a Kafka error code."""
        if self.is_ended:
            return refuse(ErrorCode.NOT_COORDINATOR)
        if self._queue is not None and not self._waiting:
            if self._queue.queued_bytes > QUEUED_BYTES_MAX:
                return refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return self._act(act)
        if self._is_slow_to_load or len(self._waiting) >= WAITING_MAX:
            return refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        future: asyncio.Future[R] = self._loop.create_future()
        self._waiting.append(
            (lambda: self._act_late(act, refuse, future), lambda code: _resolve(future, refuse(code)))
        )
        return future

    def _act(self, act: Callable[[ShardRuntime[M]], Outcome[R]]) -> Outcome[R]:
        try:
            return act(self)
        except KafkaError:
            raise
        except Exception:  # what was decided may be half of it: the log knows better
            self.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            raise

    def _act_late(
        self,
        act: Callable[[ShardRuntime[M]], Outcome[R]],
        refuse: Callable[[int], R],
        future: asyncio.Future[R],
    ) -> None:
        if self.is_ended:
            _resolve(future, refuse(ErrorCode.NOT_COORDINATOR))
            return
        try:
            outcome = self._act(act)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
            return
        if asyncio.isfuture(outcome):
            outcome.add_done_callback(lambda done: _pass_on(done, future))
        else:
            _resolve(future, outcome)

    def tick_ms(self) -> int:
        """`Now.tick_ms`, for what needs no more."""
        return int(self._loop.time() * 1000)

    def now(self) -> Now:
        return Now(int(self._loop.time() * 1000), self._parts.clock.wall_ms())

    # -- carrying out

    def carry_out(self, decision: Decision) -> None:
        """Give the replies that wait for nothing, append the records with what is deferred, set the
        timers."""
        for reply in decision.replies:
            reply.token.complete(reply.answer)
        if decision.records or decision.deferred:
            on_event = self._on_event_durable
            self.append(
                decision.records,
                [
                    (effect.token, effect.answer) if isinstance(effect, Reply) else (on_event, effect)
                    for effect in decision.deferred
                ],
            )
        for key, due_ms in decision.timers:
            self.set_timer(key, due_ms)

    def append(self, records: list[Record], deferred: Deferred) -> None:
        """All of `deferred` complete once the records, and all that was decided before, are durable."""
        assert self._queue is not None
        self.unknown.forget(records)
        self._queue.add(records, deferred)

    def when_durable(self, event: DeferredEvent, answer: Any) -> None:
        """Complete `event` with `answer` once all that was decided by now is durable, which may be at
        once."""
        self.append([], [(event, answer)])

    def _release_event(self, event: Any) -> None:
        self.carry_out(self.machine.on_durable(event, self.now()))

    def _on_durable(self) -> None:
        assert self._rewriter is not None
        self._rewriter.begin_if_due()

    # -- timers and cleanup

    def set_timer(self, key: str, due_ms: int) -> None:
        """As a Decision's timer: at `due_ms` or before, never from NEVER_MS on."""
        if due_ms < NEVER_MS and self._timers.set(key, due_ms):
            self._arm_timer()

    def _arm_timer(self) -> None:
        due_ms = self._timers.next_due_ms()
        due_ms = self._cleanup_ms if due_ms is None else min(due_ms, self._cleanup_ms)
        if self.is_ended or due_ms >= NEVER_MS or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._loop.call_at(due_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._run_due(max(int(self._loop.time() * 1000), self._timer_ms))
        except Exception as error:
            self._parts.on_failed(error)

    def _run_due(self, tick_ms: int) -> None:
        now = Now(tick_ms, self._parts.clock.wall_ms())
        for key in self._timers.take_due(tick_ms, TIMERS_PER_ITERATION):
            self.carry_out(self.machine.on_timer(key, now))
        if self._cleanup_ms <= tick_ms:
            self._cleanup_ms = tick_ms + self._parts.cleanup_interval_ms
            self.clean_up(RETENTION, self._expired, is_urgent=True)
        self._arm_timer()

    def _expired(self) -> Iterator[Decision]:
        return self.machine.cleanup(self.now()._replace(wall_ms=self._parts.retention_clock.wall_ms()))

    def clean_up(self, kind: str, decisions: Decisions, *, is_urgent: bool = False) -> None:
        """Carry out the decisions that `decisions` iterates over, one step at a time (cleanup.py). One run a
        kind: asked for during a run, it runs once more behind it. Nothing for a shard that is loading or has
        ended."""
        if self._queue is None or self.is_ended:
            return
        if kind not in self._cleanups:
            self._cleanups[kind] = Cleanup(
                decisions, self._queue, self.carry_out, self._parts.on_failed, self._parts.yield_queue
            )
        self._cleanups[kind].begin(is_urgent=is_urgent)

    # -- the end

    def end_after(self, error: BaseException) -> None:
        """Unload: the log cannot be read, or takes no more."""
        if not self.is_ended and not isinstance(error, KafkaError | Closed | Fenced):
            log.error("coordinator shard %s unloaded: append failed: %s", self.name, in_words(error))
        self.end(coordinator_code(error))

    def end(self, code: int) -> None:
        """Unload: everybody who waits is answered with the Kafka error `code`. Idempotent."""
        if self.is_ended:
            return
        self.is_ended = True
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, deque()
        deferred = [] if self._queue is None else self._queue.end()
        self._on_ended(self)
        for _, refuse in waiting:
            refuse(code)
        for event, _ in deferred:
            event.fail(code)
        self.abort(code)
        self._release_memory()

    def abort(self, code: int) -> None:
        """Answer those who wait for anything but the log."""
        for reply in self.machine.abort(code):
            reply.token.complete(reply.answer)

    def _release_memory(self) -> None:
        self.machine.release_memory()
        self.unknown.clear()

    async def drained(self) -> None:
        """Returns when all that was decided by now is durable, or the shard has ended."""
        if self._queue is not None and not self.is_ended:
            done: asyncio.Future[None] = self._loop.create_future()
            self.when_durable(Callback(lambda _: _resolve(done, None), lambda _: _resolve(done, None)), None)
            await done


def coordinator_code(error: BaseException) -> int:
    """What clients are told when a shard's log cannot be had: that it is elsewhere, or that it is to be asked
    for again."""
    is_elsewhere = isinstance(error, Fenced | Closed) or (
        isinstance(error, KafkaError) and error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    return ErrorCode.NOT_COORDINATOR if is_elsewhere else ErrorCode.COORDINATOR_NOT_AVAILABLE


def _resolve(future: asyncio.Future[R], result: R) -> None:
    if not future.done():
        future.set_result(result)


def _pass_on(done: asyncio.Future[R], future: asyncio.Future[R]) -> None:
    error = None if done.cancelled() else done.exception()
    if future.done():
        return
    if done.cancelled():
        future.cancel()
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())
