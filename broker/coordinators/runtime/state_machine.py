"""What a coordinator is, for the runtime that runs it: a state machine over the log of one partition. Pure.

The runtime loads, appends, confirms, times and rewrites the log (shard.py); it knows records, deadlines and
memory, and neither groups nor transactions. A coordinator is made of one `StateMachine` a partition, and of
commands: methods of its own, which handlers call through `CoordinatorRuntime.ask` and which return a
`Decision` for `ShardRuntime.carry_out`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from millrace.protocol.dataclass import dataclass
from millrace.protocol.records import Record

NEVER_MS = 1 << 62


class Now(NamedTuple):
    """`tick_ms` is monotonic, for deadlines; `wall_ms` is the wall's, for what the log and clients see."""

    tick_ms: int
    wall_ms: int


class DeferredEvent(Protocol):
    """Who waits for an answer, or for records to be durable."""

    def complete(self, answer: Any) -> None:
        """What was waited for is durable: the answer may be shown."""
        ...

    def fail(self, code: int) -> None:
        """It will not be answered here, for the shard is unloaded: a Kafka error code."""
        ...


@dataclass(slots=True)
class Reply:
    """An effect: complete `token`, a DeferredEvent, with `answer`."""

    token: Any
    answer: Any


class Decision:
    """What a state machine wants done; one a command and one a durable effect, so that making it costs
    little.

    `records` to be appended, in this order; the state machine has applied them already `replies` to be given
    now: they show nothing that is not durable `deferred` effects that wait for `records` and for all records
    decided before: a Reply, or any other value, which is handed back
               to `StateMachine.on_durable`
    `timers`   (key, due time in ms of `Now.tick_ms`): `StateMachine.on_timer` is called with the key at that
               time or before; a later
               time for a key that has a timer changes nothing until that one has fired
    """

    __slots__ = ("deferred", "records", "replies", "timers")

    def __init__(
        self,
        records: list[Record] | None = None,
        replies: list[Reply] | None = None,
        deferred: list[Any] | None = None,
        timers: list[tuple[str, int]] | None = None,
    ) -> None:
        self.records = [] if records is None else records
        self.replies = [] if replies is None else replies
        self.deferred = [] if deferred is None else deferred
        self.timers = [] if timers is None else timers


class StateMachine(Protocol):
    """The state that one partition's log describes, and what is decided on it. Plain calls: none awaits, none
    does I/O.

    Life: `apply` for every record of the log, from its start to its end; `on_loaded` once; then commands,
    `on_timer`, `on_durable`, `cleanup` and `snapshot` in any order; `abort` and `release_memory` when the
    shard is unloaded, which may also be during the load.

    Invariants, the runtime's first:
      * Apply order is log order. A command has applied its records when it returns, and they are appended in
        the order of the decisions, so that memory is ahead of the log by what is in flight and never differs
        from it.
      * Nothing is durable when a decision is returned. An effect in `deferred` is released when its records,
        and all that were decided before, are durable and the partition was still led here; effects are
        released in the order of the decisions.
      * When an append fails, or the partition is led elsewhere, nothing is undone: the shard is unloaded,
        every deferred event fails with an error code, and the next owner applies the log. What was in flight
        may be in that log or not: to clients it is unknown.
      * A command that raises anything but KafkaError unloads the shard: its records may be half of what it
        meant.
      * A key's timer is never later than the earliest time that was asked for since it last fired.
      * A snapshot is taken in chunks with commands between them. A record is rewritten behind everything
        decided before its chunk was taken, and the log start moves only when the whole snapshot is durable.
    And the state machine's:
      * It changes by `apply` alone where the log is what counts, live and at a load alike: the same records
        give the same state.
      * `snapshot` yields, for each key that lives, one record that makes `apply` give what is there at that
        moment; what appears while it is walked need not be yielded, for it is in the log behind the beginning
        of the walk.
      * `live_bytes` is about what `snapshot` takes in the log. Memory is charged as it grows
        (broker/state_memory.py).
    """

    @property
    def live_bytes(self) -> int:
        """About what all that lives takes in the log."""
        ...

    def apply(self, record: Record) -> bool:
        """Fold in one record of the log; no value is the tombstone of its key. False, with nothing changed,
        for a record of an unknown type or version, and for one that cannot be read: the runtime keeps it
        (unknown_records.py)."""
        ...

    def on_loaded(self, now: Now) -> Iterator[Decision]:
        """The log was applied to its end. Timers alone; a step takes some milliseconds at most, and nothing
        else is asked before the last one."""
        ...

    def on_timer(self, key: str, now: Now) -> Decision:
        """A timer fired, perhaps before the key's deadline, or for a key that is gone: the decision may set
        it again."""
        ...

    def on_durable(self, event: Any, now: Now) -> Decision:
        """An effect of an earlier decision that was no Reply: its records are durable."""
        ...

    def cleanup(self, now: Now) -> Iterator[Decision]:
        """Forget what has expired by `now`, whose wall clock is the one that retention trusts. A step takes
        some milliseconds at most, and commands come between two steps."""
        ...

    def snapshot(self, wall_ms: int) -> Iterator[Record]:
        """All that lives, as records; `wall_ms` is their timestamp."""
        ...

    def abort(self, code: int) -> list[Reply]:
        """The replies, with an error code, to those that wait for anything but the log. Nothing is decided
        for them afterwards."""
        ...

    def release_memory(self) -> None:
        """Give back all that is charged. Called last, and again after a load that ended behind it."""
        ...
