"""A coordinator of counters: the smallest StateMachine that uses all that the runtime gives, and a broker's
inside that runs it.

    key      int16 type 0 | the counter's name
    value    int64 total

A counter that nobody adds to for `IDLE_MS` is deleted; one of zero is, too, when cleanup looks.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from millrace.broker.coordinators.runtime.deferred import DeferredResponse, Outcome, unchanged
from millrace.broker.coordinators.runtime.records import record_bytes, record_type
from millrace.broker.coordinators.runtime.shard import ShardParts, ShardRuntime
from millrace.broker.coordinators.runtime.shards import CoordinatorRuntime
from millrace.broker.coordinators.runtime.state_machine import Decision, Now, Reply
from millrace.broker.state_memory import Charges, StateMemory
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.protocol.records import Record
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.broker_fixture import BrokerFixture
from tests.broker.coordinators.build import TellingOpener
from tests.s3stream.build import World

TOPIC = "__counters"
TYPE = 0
IDLE_MS = 60_000
CLEANUP_MS = 600_000
COUNTER_BYTES = 100  # in memory, beside its name
DELETED_PER_CHUNK = 3

_KEY, _VALUE = struct.Struct(">h"), struct.Struct(">q")


class Added(NamedTuple):
    """A deferred effect: an addition is durable."""

    name: str


class Counters:
    def __init__(self, memory: StateMemory) -> None:
        self.totals: dict[str, int] = {}
        self.durable: dict[str, int] = {}  # what whoever waits may be told
        self._deadlines: dict[str, int] = {}
        self._waiters: list[tuple[str, int, Any]] = []  # counter, the least that is waited for, token
        self._memory = memory
        self._charges = Charges(memory)

    # -- commands

    def add(self, name: str, amount: int, token: Any, now: Now) -> Decision:
        """Answered with the total once that is durable."""
        total = self.totals.get(name, 0) + amount
        self._deadlines[name] = now.tick_ms + IDLE_MS
        decision = Decision(
            deferred=[Added(name), Reply(token, total)], timers=[(name, self._deadlines[name])]
        )
        self._emit(decision, name, total, now)
        return decision

    def wait_for(self, name: str, least: int, token: Any) -> Decision:
        """Answered when so much is durable, perhaps never."""
        self._waiters.append((name, least, token))
        return Decision(replies=self._satisfied(name))

    def _emit(self, decision: Decision, name: str, total: int | None, now: Now) -> None:
        record = Record(
            _KEY.pack(TYPE) + name.encode(), None if total is None else _VALUE.pack(total), now.wall_ms
        )
        decision.records.append(record)
        assert self.apply(record)

    def _satisfied(self, name: str) -> list[Reply]:
        total = self.durable.get(name, 0)
        done = [waiter for waiter in self._waiters if waiter[0] == name and waiter[1] <= total]
        self._waiters = [waiter for waiter in self._waiters if waiter not in done]
        return [Reply(token, total) for _, _, token in done]

    # -- StateMachine

    @property
    def live_bytes(self) -> int:
        return sum(record_bytes(record) for record in self.snapshot(0))

    def apply(self, record: Record) -> bool:
        key = record.key or b""
        if record_type(key) != TYPE:
            return False
        name = key[_KEY.size :].decode()
        before = self.totals.pop(name, None)
        if record.value is not None:
            self.totals[name] = _VALUE.unpack(record.value)[0]
        size_bytes = COUNTER_BYTES + len(name)
        self._charges.add(self._memory.restored, size_bytes * ((name in self.totals) - (before is not None)))
        return True

    def on_loaded(self, now: Now) -> Iterator[Decision]:
        self.durable = dict(self.totals)
        self._deadlines = dict.fromkeys(self.totals, now.tick_ms + IDLE_MS)
        yield Decision(timers=list(self._deadlines.items()))

    def on_timer(self, key: str, now: Now) -> Decision:
        decision = Decision()
        due_ms = self._deadlines.get(key, 0)
        if due_ms > now.tick_ms:
            decision.timers.append((key, due_ms))
        elif key in self.totals:
            self._emit(decision, key, None, now)
        return decision

    def on_durable(self, event: Added, now: Now) -> Decision:
        self.durable[event.name] = self.totals.get(event.name, 0)
        return Decision(replies=self._satisfied(event.name))

    def cleanup(self, now: Now) -> Iterator[Decision]:
        names = [name for name, total in self.totals.items() if not total]
        for start in range(0, len(names), DELETED_PER_CHUNK):
            decision = Decision()
            for name in names[start : start + DELETED_PER_CHUNK]:
                if self.totals.get(name) == 0:
                    self._emit(decision, name, None, now)
            yield decision

    def snapshot(self, wall_ms: int) -> Iterator[Record]:
        for name in list(self.totals):
            if name in self.totals:
                yield Record(_KEY.pack(TYPE) + name.encode(), _VALUE.pack(self.totals[name]), wall_ms)

    def abort(self, code: int) -> list[Reply]:
        waiters, self._waiters = self._waiters, []
        return [Reply(token, -code) for _, _, token in waiters]

    def release_memory(self) -> None:
        self._charges.release()


class CounterFixture(BrokerFixture):
    """Answers are totals; below zero: a Kafka error code, negated."""

    def __init__(self, world: World | None = None, partitions: int = 1) -> None:
        super().__init__(world)
        self.opener = TellingOpener(self)
        self.failures: list[BaseException] = []
        self.make_topic(TOPIC, partitions, cleanup_policy="compact")

    def _successor(self) -> MetadataPublisher:
        publisher = super()._successor()
        self.memory = StateMemory()
        room = self.engine.coordinator_room
        parts = ShardParts(
            room,
            self.engine,
            self.clock,
            self.judged,
            CLEANUP_MS,
            self.memory,
            self.failures.append,
            YieldQueue(),
        )
        self.runtime = CoordinatorRuntime(
            TOPIC, self.directory, self.cache, parts, lambda: Counters(self.memory)
        )
        publisher.subscribe(lambda delta, image: self.runtime.follow(image))
        return publisher

    def shard(self, index: int = 0) -> ShardRuntime[Counters]:
        return self.runtime.shard_of(index)

    def add(self, name: str, amount: int = 1) -> asyncio.Future[int]:
        def act(shard: ShardRuntime[Counters]) -> Outcome[int]:
            deferred = DeferredResponse(unchanged, lambda code: -code)
            shard.carry_out(shard.machine.add(name, amount, deferred, shard.now()))
            return deferred.outcome()

        return _as_future(self.runtime.ask(name, act, lambda code: -code))

    def wait_for(self, name: str, least: int) -> asyncio.Future[int]:
        def act(shard: ShardRuntime[Counters]) -> Outcome[int]:
            deferred = DeferredResponse(unchanged, lambda code: -code)
            shard.carry_out(shard.machine.wait_for(name, least, deferred))
            return deferred.outcome()

        return _as_future(self.runtime.ask(name, act, lambda code: -code))

    async def total(self, name: str) -> int:
        """What is durable."""
        return await self.add(name, 0)


def _as_future(outcome: Outcome[int]) -> asyncio.Future[int]:
    if asyncio.isfuture(outcome):
        return outcome
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.set_result(outcome)
    return future
