"""AsyncBroker: broker.py for tests that run on a loop. Calls that start or end processes run in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from millrace.testing import operations
from millrace.testing.operations import Conversation
from millrace.testing.process import HOST
from millrace.testing.seed import read_seed, write_seed
from millrace.testing.values import Place, Record, TopicPartition, Value
from millrace.testing.wire import run_async

if TYPE_CHECKING:
    from millrace.testing.broker import Broker

T = TypeVar("T")
WAIT_S = 10.0


class AsyncBroker:
    """What each call does is said at Broker's of the same name. `blocking` is that Broker."""

    def __init__(self, blocking: Broker) -> None:
        self.blocking = blocking

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT, for the client under test. It stays the same over restarts."""
        return self.blocking.bootstrap_servers

    @property
    def log_text(self) -> str:
        """What the broker logged so far."""
        return self.blocking.log_text

    async def start(self) -> None:
        await asyncio.to_thread(self.blocking.start)

    async def close(self) -> None:
        await asyncio.to_thread(self.blocking.close)

    async def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        await self._run(operations.create_topic(topic, partitions, config or {}))

    async def topics(self) -> list[str]:
        return await self._run(operations.topics())

    async def produce(
        self,
        topic: str,
        *values: Value,
        key: Value = None,
        headers: Mapping[str, Value] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> list[Place]:
        return await self._run(operations.produce(topic, values, key, headers or {}, partition, timestamp))

    async def seed(self, lines: Iterable[str]) -> int:
        return await self._run(write_seed(read_seed(lines)))

    async def records(self, topic: str) -> list[Record]:
        return await self._run(operations.records(topic))

    async def wait_for_records(self, topic: str, count: int, timeout: float = WAIT_S) -> list[Record]:
        return await self._run(operations.wait_for_records(topic, count, timeout))

    async def groups(self) -> dict[str, str]:
        return await self._run(operations.groups())

    async def committed(self, group: str) -> dict[TopicPartition, int]:
        return await self._run(operations.committed(group))

    async def lag(self, group: str, topic: str | None = None) -> int:
        return await self._run(operations.lag(group, topic))

    async def expire_member(self, group: str, member: str) -> None:
        await self._run(operations.expire_member(group, member))

    async def restart(self) -> None:
        await asyncio.to_thread(self.blocking.restart)

    async def kill(self) -> None:
        await asyncio.to_thread(self.blocking.kill)

    async def pause(self) -> None:
        self.blocking.pause()

    async def resume(self) -> None:
        self.blocking.resume()

    async def fail(self, api: str, code: str | int, times: int | None = 1) -> None:
        await asyncio.to_thread(self.blocking.fail, api, code, times)

    async def slow(self, api: str, ms: int) -> None:
        await asyncio.to_thread(self.blocking.slow, api, ms)

    async def fill_disk(self) -> None:
        await asyncio.to_thread(self.blocking.fill_disk)

    async def drop_connections(self) -> int:
        return await asyncio.to_thread(self.blocking.drop_connections)

    async def run_retention(self, as_of: datetime | None = None) -> int:
        return await asyncio.to_thread(self.blocking.run_retention, as_of)

    async def heal(self) -> None:
        await asyncio.to_thread(self.blocking.heal)

    async def unserved(self) -> list[str]:
        return await asyncio.to_thread(self.blocking.unserved)

    async def _run(self, conversation: Conversation[T]) -> T:
        return await run_async(conversation, HOST, int(self.bootstrap_servers.rpartition(":")[2]))
