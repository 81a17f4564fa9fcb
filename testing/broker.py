"""Broker: a broker process and what a test may ask of it, in calls that block.

Under asyncio a blocking call keeps the client under test from running: ask `broker.aio` there, which is the
same with `await`. Not here: how it is asked (operations.py, wire.py), how it is started and ended
(process.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.testing import operations
from millrace.testing.control import ask
from millrace.testing.isolation import Snapshot, restore, take_snapshot
from millrace.testing.operations import Conversation
from millrace.testing.process import HOST, BrokerProcess
from millrace.testing.seed import read_seed, write_seed
from millrace.testing.values import Place, Record, TopicPartition, Value
from millrace.testing.wire import run_blocking

if TYPE_CHECKING:
    from millrace.testing.aio import AsyncBroker

T = TypeVar("T")
WAIT_S = 10.0


class Broker:
    """`with Broker() as kafka:` or `async with Broker() as kafka:`; or `start()` and `close()`.

    `settings`: broker settings by their Kafka names, as in `Broker({"num.partitions": "3"})`. `port`: 0 for a
    free one. Everything is gone after it, also when the process that started it is killed.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, port: int = 0) -> None:
        self.process = BrokerProcess(settings or {}, port)
        self._abandoned = Snapshot()  # what clients that were left running may make again

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT, for the client under test. It stays the same over restarts."""
        return self.process.bootstrap_servers

    @cached_property
    def aio(self) -> AsyncBroker:
        """The same broker for asynchronous tests."""
        from millrace.testing.aio import AsyncBroker

        return AsyncBroker(self)

    @property
    def log_text(self) -> str:
        """What the broker logged so far."""
        return self.process.log_text

    # Life

    def start(self) -> None:
        """Returns when clients are served. Raises BrokerNotStarted. Nothing to do for one that runs."""
        self.process.start()

    def close(self) -> None:
        """The end of the broker and all its data. Idempotent."""
        self.process.close()

    def __enter__(self) -> Broker:
        self.start()
        self._warn()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> AsyncBroker:
        await self.aio.start()
        self._warn()
        return self.aio

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aio.close()

    def _warn(self) -> None:
        """Of settings that were given for nothing: pytest shows it."""
        try:
            for sentence in self.process.settings_without_effect:
                warnings.warn(sentence, stacklevel=3)
        except Warning:  # where warnings are errors
            self.close()
            raise

    # Topics and records

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """It has its leaders on return. Raises Refused for one that exists."""
        self._run(operations.create_topic(topic, partitions, config or {}))

    def topics(self) -> list[str]:
        """All but internal ones, sorted."""
        return self._run(operations.topics())

    def produce(
        self,
        topic: str,
        *values: Value,
        key: Value = None,
        headers: Mapping[str, Value] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> list[Place]:
        """Writes one record for each value, all with that key, in one batch; gives their places. Text is
        UTF-8, dictionaries and lists are JSON, None is null. Without `partition`: the one Kafka's Java
        producer gives the key; 0 without a key."""
        return self._run(operations.produce(topic, values, key, headers or {}, partition, timestamp))

    def seed(self, lines: Iterable[str]) -> int:
        """Writes the records of JSON lines, as in {"topic": "orders", "key": "a", "value": {"id": 1}}; gives
        how many. ValueError names a line that cannot be read; records of lines before it may be there by
        then."""
        return self._run(write_seed(read_seed(lines)))

    def records(self, topic: str) -> list[Record]:
        """All that the topic holds now, by partition and offset; none of a topic that there is not."""
        return self._run(operations.records(topic))

    def wait_for_records(self, topic: str, count: int, timeout: float = WAIT_S) -> list[Record]:
        """All that the topic holds, as soon as that is `count` records. NotEnoughRecords after `timeout`
        seconds. The topic may be made meanwhile."""
        return self._run(operations.wait_for_records(topic, count, timeout))

    # Groups

    def groups(self) -> dict[str, str]:
        """The states of all groups, by name."""
        return self._run(operations.groups())

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets that the group committed; none of a group that there is not."""
        return self._run(operations.committed(group))

    def lag(self, group: str, topic: str | None = None) -> int:
        """How many records lie behind what the group committed: of `topic`, or of all topics of which it
        committed anything."""
        return self._run(operations.lag(group, topic))

    def expire_member(self, group: str, member: str) -> None:
        """As if the member's session had timed out: it is out of the group, which rebalances. `member`: its
        member id, group.instance.id or client.id. LookupError when there is none."""
        self._run(operations.expire_member(group, member))

    # The process

    def restart(self) -> None:
        """An orderly stop, and a start at the same address."""
        self.process.stop()
        self.process.start()

    def kill(self) -> None:
        """kill -9. `start()` brings it back at the same address, with all that was acknowledged."""
        self.process.kill()

    def pause(self) -> None:
        """The process stands still, and its connections stay open, until `resume()`."""
        self.process.pause()

    def resume(self) -> None:
        """Nothing to do for one that goes on."""
        self.process.resume()

    # Faults: of the client under test alone, and gone after the test

    def fail(self, api: str, code: str | int, times: int | None = 1) -> None:
        """The next `times` requests of `api` are refused with `code`, before they do anything; None: all,
        until `heal()`. `code`: Kafka's number or name, as in `fail("Produce", "NOT_LEADER_OR_FOLLOWER",
        times=2)`. ValueError for an API that cannot be refused so."""
        self._control("fail", api=api, code=code, times="" if times is None else times)

    def slow(self, api: str, ms: int) -> None:
        """Answers of `api` leave so much later, until `heal()`: what they answer is done at once."""
        self._control("slow", api=api, ms=ms)

    def fill_disk(self) -> None:
        """Producers are refused with KAFKA_STORAGE_ERROR, until `heal()`."""
        self._control("fill-disk")

    def drop_connections(self) -> int:
        """Every client loses its connection, by a reset; how many did."""
        return int(self._control("drop-connections")["dropped"])

    def run_retention(self, as_of: datetime | None = None) -> int:
        """Retention of all topics as if it were `as_of`, or now; how many offsets it dropped."""
        moment = datetime.now(UTC) if as_of is None else as_of
        return int(self._control("run-retention", as_of=int(moment.timestamp() * 1000))["dropped"])

    def heal(self) -> None:
        """The end of all faults; a paused broker goes on."""
        self.process.resume()
        self._control("clear")

    def unserved(self) -> list[str]:
        """What clients asked for since the last call that Millrace does not serve (transactions, for one), as
        sentences. The fixtures fail the test with them; a test that asks first has taken them."""
        if not self.process.is_running or self.process.is_paused:
            return []
        found: list[str] = self._control("unserved")["unserved"]
        return found

    def _control(self, command: str, **arguments: object) -> dict[str, Any]:
        return ask(self.process.control_port, command, **arguments)

    # Isolation

    def snapshot(self) -> Snapshot:
        """What there is now, for `restore`. Removes first what clients that an earlier test left running have
        made again since."""
        now = self._run(take_snapshot())
        before = now.without(self._abandoned)
        if now != before:
            self._run(restore(before))
        return before

    def restore(self, before: Snapshot) -> list[str]:
        """Removes the topics and groups that came since, and all faults. Gives the clients that are still in
        such groups. Starts a broker that was killed, and lets one go on that was paused."""
        self.process.start()
        self.heal()
        # Else what a closed client asked for last is handled later, and makes its topic again.
        has_clients = self._control("answer-parked")["connections"] > 0
        restored = self._run(restore(before))
        if has_clients or restored.left_running:
            self._abandoned = self._abandoned.joined_with(restored.removed)
        return restored.left_running

    def _run(self, conversation: Conversation[T]) -> T:
        return run_blocking(conversation, HOST, int(self.bootstrap_servers.rpartition(":")[2]))
