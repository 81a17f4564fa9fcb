"""One shard at work: load, then decide, append, and release what waited for the append.

    loading --the log was read--> serving --an append failed, or the partition is led elsewhere--> ended

Not here: what is decided (shard.py), batches (append_queue.py), which shards there are (coordinator.py). Keeps true:
  * nothing is answered that depends on a record that is not durable, or that another owner's could replace;
  * nothing is decided before the log was read to its end, heartbeats excepted, which are then all well;
  * a shard that ends answers everybody; its successor reads the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, Union

from millrace.broker.coordinators.alarms import Alarms
from millrace.broker.coordinators.append_queue import AppendQueue, Line
from millrace.broker.coordinators.config import CoordinatorSettings
from millrace.broker.coordinators.forgetting import Forgetting
from millrace.broker.coordinators.groups import NEVER_MS, Group, end_owing
from millrace.broker.coordinators.loading import read_log
from millrace.broker.coordinators.members import GroupState, Member
from millrace.broker.coordinators.rewriting import Rewriting, Step
from millrace.broker.coordinators.shard import Decision, Now, Shard, Stored
from millrace.broker.coordinators.tickets import Waiting
from millrace.broker.partitions.meta_stream import Room
from millrace.broker.partitions.partition import Partition
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.records import Record
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Closed, Fenced

log = logging.getLogger(__name__)

R = TypeVar("R")
Outcome: TypeAlias = Union[R, "asyncio.Future[R]"]

QUEUED_BYTES_MAX = 16 << 20  # more than this not appended yet: whoever asks is told to try again
LOAD_WAIT_S = 10.0  # whoever waits longer for a load is told to try again
WAITING_MAX = 10_000  # requests that wait for a load
GROUPS_PER_TURN = 500  # looked at for deadlines that come together, before others have a turn


class ShardLoop:
    """`room` is what coordinators have before data; `data_room` what all have, and a rewriting of the log waits for.
    `judged` is the clock by which offsets expire. `on_ended` is told once, `on_failed` of what must never happen (the process ends)."""

    def __init__(
        self,
        shard: Shard,
        settings: CoordinatorSettings,
        room: Room,
        data_room: Room,
        clock: Clock,
        judged: Clock,
        on_ended: Callable[[ShardLoop], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self.shard = shard
        self.partition: Partition | None = None
        self.is_ended = False
        self.deleting: set[str] = set()  # groups whose offsets are being deleted in steps
        self._settings = settings
        self._room = room
        self._data_room = data_room
        self._clock = clock
        self._judged = judged
        self._on_ended = on_ended
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._queue: AppendQueue | None = None
        self._rewriting: Rewriting | None = None
        self._forgetting: Forgetting | None = None
        self._waiting: list[tuple[Callable[[], None], Callable[[int], None]]] = []  # for the load: to run, or to refuse
        self._is_slow_to_load = False
        self._alarms = Alarms()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER_MS
        self._retention_ms = NEVER_MS
        self._stored_step = Step(self._on_stored)
        self._committed_step = Step(self._on_committed)

    def __repr__(self) -> str:
        state = "ended" if self.is_ended else "loading" if self.partition is None else repr(self.partition)
        return f"{self.shard!r}, {state}"

    # -- loading

    async def load(self, partition: Partition, topic_id_of: Callable[[str], bytes | None]) -> None:
        """Reads the log, then serves those who wait. Topics may have been deleted while nobody had the shard: `topic_id_of` tells the id
        that a name has now. Raises what reads raise."""
        try:
            read_bytes = await read_log(partition, self.shard.apply)
        finally:
            if self.is_ended:
                self.shard.charges.release()
        if self.is_ended:
            return
        self.partition = partition
        queue = AppendQueue(partition, self._room, self._clock, self._on_durable, self.end_after, self._on_failed)
        self._queue = queue
        self._rewriting = Rewriting(
            self.shard, partition, queue, self._data_room, self._clock, read_bytes, self._loop.call_soon
        )
        now = self.now()
        self.shard.begin(now)
        for group in self.shard.groups.values():
            self.retime(group)
        self._retention_ms = now.tick_ms + self._settings.offsets_retention_check_interval_ms
        self._set_timer()
        self._forgetting = Forgetting(self.shard, queue, topic_id_of, self.now, self.carry_out, self._on_failed)
        self._forgetting.begin()
        self._rewriting.begin_if_due()
        waiting, self._waiting = self._waiting, []
        for run, _ in waiting:
            run()

    def delete_orphans(self) -> None:
        """Topics were deleted: their offsets go, some at a time."""
        if self._forgetting is not None and not self.is_ended:
            self._forgetting.begin()

    def on_slow_load(self) -> None:
        """Whoever waits for the load has waited long enough, and so has whoever comes before it is done."""
        self._is_slow_to_load = self.partition is None
        waiting, self._waiting = self._waiting, []
        for _, refuse in waiting:
            refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    # -- being asked

    @property
    def is_loading(self) -> bool:
        return self.partition is None and not self.is_ended

    def ask(self, act: Callable[[ShardLoop], Outcome[R]], refuse: Callable[[int], R]) -> Outcome[R]:
        """Runs `act` now, or in its turn when the log is read."""
        if self.is_ended:
            return refuse(ErrorCode.NOT_COORDINATOR)
        if self._queue is not None:
            if self._queue.queued_bytes > QUEUED_BYTES_MAX:
                return refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return self._act(act)
        if self._is_slow_to_load or len(self._waiting) >= WAITING_MAX:
            return refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        future: asyncio.Future[R] = self._loop.create_future()
        self._waiting.append((lambda: self._act_late(act, refuse, future), lambda code: _settle(future, refuse(code))))
        return future

    def _act(self, act: Callable[[ShardLoop], Outcome[R]]) -> Outcome[R]:
        try:
            return act(self)
        except KafkaError:
            raise
        except Exception:  # what was decided may be half of it: the log knows better
            self.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            raise

    def _act_late(
        self, act: Callable[[ShardLoop], Outcome[R]], refuse: Callable[[int], R], future: asyncio.Future[R]
    ) -> None:
        if self.is_ended:
            _settle(future, refuse(ErrorCode.NOT_COORDINATOR))
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
            _settle(future, outcome)

    def now(self) -> Now:
        return Now(int(self._loop.time() * 1000), self._clock.wall_ms())

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """An error code, at once."""
        group = self.shard.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.on_heartbeat(member_id, instance_id, generation, int(self._loop.time() * 1000))
        if group.state is GroupState.PREPARING:
            self.retime(group)  # one that waits to join for the first time had longer until now
        return error

    # -- carrying out

    def carry_out(self, decision: Decision, group: Group | None = None) -> None:
        """Answers what waits for nothing, queues the rest; sees to the deadlines of `group`."""
        for reply in decision.at_once:
            reply.token.give(reply.answer)
        line: Line = [
            (self._stored_step, outcome) if isinstance(outcome, Stored) else (outcome.token, outcome.answer)
            for outcome in decision.once_durable
        ]
        if decision.records or line:
            self.append(decision.records, line)
        if group is not None:
            self.retime(group)

    def append(self, records: list[Record], line: Line) -> None:
        """All of `line` get their answers once the records, and all that was decided before, are durable."""
        assert self._queue is not None
        self._queue.add(records, line)

    def append_commit(self, group_id: str, member_id: str, records: list[Record], line: Line) -> None:
        """As `append`, for a commit: a member that made it owes no heartbeat until then."""
        group = self.shard.groups.get(group_id)
        member = None if group is None else group.begin_to_owe(member_id)
        self.append(records, line if member is None else [(self._committed_step, (group_id, member)), *line])

    def when_durable(self, ticket: Waiting, answer: Any) -> None:
        """Gives `answer` once all that was decided by now is durable, which may be at once."""
        self.append([], [(ticket, answer)])

    def _on_stored(self, stored: Stored) -> None:
        self.carry_out(self.shard.on_stored(stored, self.now()), stored.group)

    def _on_committed(self, commit: tuple[str, Member]) -> None:
        group_id, member = commit
        end_owing(member, int(self._loop.time() * 1000))
        # Not `retime`, which would look at every member of the group for each commit.
        if self._alarms.set(group_id, member.deadline_ms):
            self._set_timer()

    def _on_durable(self) -> None:
        assert self._rewriting is not None
        self._rewriting.begin_if_due()

    # -- deadlines and retention

    def retime(self, group: Group) -> None:
        """The group's deadlines may have changed."""
        due_ms = group.next_deadline_ms()
        if due_ms < NEVER_MS and self._alarms.set(group.group_id, due_ms):
            self._set_timer()

    def _set_timer(self) -> None:
        due_ms = self._alarms.next_due_ms()
        due_ms = self._retention_ms if due_ms is None else min(due_ms, self._retention_ms)
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
            self._on_failed(error)

    def _run_due(self, tick_ms: int) -> None:
        now = Now(tick_ms, self._clock.wall_ms())
        for group_id in self._alarms.take_due(tick_ms, GROUPS_PER_TURN):
            group = self.shard.groups.get(group_id)
            if group is not None:
                self.carry_out(self.shard.on_tick(group, now), group)
        if self._retention_ms <= tick_ms:
            self._retention_ms = tick_ms + self._settings.offsets_retention_check_interval_ms
            self._begin_expiry(now)
        self._set_timer()

    def _begin_expiry(self, now: Now) -> None:
        self._expire(list(self.shard.groups), Now(now.tick_ms, self._judged.wall_ms()))

    def _expire(self, group_ids: list[str], now: Now) -> None:
        if self.is_ended:
            return
        try:
            decision, done = self.shard.expire(group_ids, now)
            self.carry_out(decision)
        except Exception as error:
            self._on_failed(error)
            return
        if done < len(group_ids):
            self._loop.call_soon(self._expire, group_ids[done:], now)

    # -- the end

    def end_after(self, error: BaseException) -> None:
        """The log cannot be read, or takes no more."""
        code = coordinator_code(error)
        if not self.is_ended and not isinstance(error, KafkaError | Closed | Fenced):
            log.error("%r ends after %r", self, error)
        self.end(code)

    def end(self, code: int) -> None:
        """Answers everybody with `code`. Idempotent."""
        if self.is_ended:
            return
        self.is_ended = True
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, []
        line = [] if self._queue is None else self._queue.end()
        self._on_ended(self)
        for _, refuse in waiting:
            refuse(code)
        for ticket, _ in line:
            ticket.refuse(code)
        self.release(code)
        self.shard.charges.release()

    def release(self, code: int) -> None:
        """Answers those who wait for others of their group, and ends the groups."""
        for group in self.shard.groups.values():
            for reply in group.die(code):
                reply.token.give(reply.answer)

    async def drained(self) -> None:
        """Returns when all that was decided by now is durable, or the shard has ended."""
        if self._queue is not None and not self.is_ended:
            done: asyncio.Future[None] = self._loop.create_future()
            self.when_durable(Step(lambda _: _settle(done, None), lambda _: _settle(done, None)), None)
            await done


def coordinator_code(error: BaseException) -> int:
    """What clients are told when a shard's log cannot be had: that it is elsewhere, or that it is to be asked for again."""
    is_elsewhere = isinstance(error, Fenced | Closed) or (
        isinstance(error, KafkaError) and error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    return ErrorCode.NOT_COORDINATOR if is_elsewhere else ErrorCode.COORDINATOR_NOT_AVAILABLE


def _settle(future: asyncio.Future[R], result: R) -> None:
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
