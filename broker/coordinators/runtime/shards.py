"""The shards of one coordinator on this broker: one for each partition of its internal topic that is led
here.

A shard is loaded when somebody first asks for one of its keys, and ends when its partition is led elsewhere
or takes no more.

Not here: what a shard does (shard.py), what clients ask (handlers). Keeps true: at most one shard a partition
is alive; one that could not be loaded is not tried again for `RETRY_MS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from millrace.broker.coordinators.runtime.deferred import Outcome
from millrace.broker.coordinators.runtime.partitioning import partition_for
from millrace.broker.coordinators.runtime.shard import (
    LOAD_WAIT_S,
    ShardParts,
    ShardRuntime,
    coordinator_code,
)
from millrace.broker.coordinators.runtime.state_machine import StateMachine
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.partitions.partition import Partition
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.topics import Topic
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.errors import Corrupt, MillraceError, in_words

log = logging.getLogger(__name__)

R = TypeVar("R")
M = TypeVar("M", bound=StateMachine)

RETRY_MS = 1000
STOP_WAIT_S = 5.0  # for what was decided to become durable
REMEMBERED_MAX = 10_000  # keys whose partition is remembered


class Partitions(Protocol):
    """Of broker/partitions/directory.py."""

    def get(self, topic_id: bytes, index: int) -> Partition | asyncio.Future[Partition]: ...


class CoordinatorRuntime(Generic[M]):
    """`topic` is the internal topic; `new_machine` makes an empty state machine for a partition of it;
    `on_loaded` is told of a shard that has read its log, before anybody is served."""

    def __init__(
        self,
        topic: str,
        partitions: Partitions,
        cache: MetadataCache,
        parts: ShardParts,
        new_machine: Callable[[], M],
        on_loaded: Callable[[ShardRuntime[M]], None] = lambda shard: None,
    ) -> None:
        self._topic_name = topic
        self._partitions = partitions
        self._cache = cache
        self._parts = parts
        self._new_machine = new_machine
        self._on_loaded = on_loaded
        self._image: MetadataImage | None = None  # the last one that was followed
        self._topic: Topic | None = None
        self._shards: dict[int, ShardRuntime[M]] = {}
        self._loads: dict[asyncio.Task[None], None] = {}
        self._failed: dict[int, tuple[float, int]] = {}  # partition -> when, and the code to answer with
        self._remembered: dict[str, int] = {}  # key -> partition
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"shards {sorted(self._shards)}"

    # -- life

    async def stop(self) -> None:
        """Takes no more; answers those who wait for anything but the log at once, and the rest when what they
        wait for is durable, or after `STOP_WAIT_S`. To be called while partitions still take appends."""
        self._is_stopped = True
        for task in list(self._loads):
            task.cancel()
        shards = list(self._shards.values())
        for shard in shards:
            shard.abort(ErrorCode.NOT_COORDINATOR)
        try:
            async with asyncio.timeout(STOP_WAIT_S):
                for shard in shards:
                    await shard.drained()
        except TimeoutError:
            log.warning(
                "coordinator of %s stopped with appends in flight after %d s: their clients are told to ask "
                "again",
                self._topic_name,
                STOP_WAIT_S,
            )
        for shard in shards:
            shard.end(ErrorCode.NOT_COORDINATOR)

    def follow(self, image: MetadataImage) -> None:
        """To be told of every image: ends the shards whose partition is not led here any more."""
        if image is self._image:
            return
        self._image = image
        topic = image.topics.by_name(self._topic_name)
        if topic is self._topic:
            return
        before, self._topic = self._topic, topic
        is_same = topic is not None and before is not None and topic.topic_id == before.topic_id
        if not is_same or topic is None or before is None or len(topic.partitions) != len(before.partitions):
            self._remembered.clear()
        self._failed.clear()
        for index, shard in list(self._shards.items()):
            if not is_same or not self._is_led(topic, index):
                shard.end(ErrorCode.NOT_COORDINATOR)

    def _is_led(self, topic: Topic | None, index: int) -> bool:
        return (
            topic is not None
            and index < len(topic.partitions)
            and topic.partitions[index].leader == self._cache.node_id
        )

    # -- asking

    def ask(
        self, key: str, act: Callable[[ShardRuntime[M]], Outcome[R]], refuse: Callable[[int], R]
    ) -> Outcome[R]:
        """What `act` gives of the key's shard, once that is loaded; or a refusal with a Kafka error code."""
        index = self.partition_of(key)
        if index is None:
            return refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self.ask_shard(index, act, refuse)

    def ask_shard(
        self, index: int, act: Callable[[ShardRuntime[M]], Outcome[R]], refuse: Callable[[int], R]
    ) -> Outcome[R]:
        """As `ask`, of a partition's shard."""
        try:
            shard = self._shards.get(index) or self._begin(index)
        except KafkaError as error:
            return refuse(error.code)
        return shard.ask(act, refuse)

    def partition_of(self, key: str) -> int | None:
        """The key's partition; None while there are none, or no more."""
        if self._is_stopped:
            return None
        self.follow(self._cache.image)
        if self._topic is None:
            return None
        index = self._remembered.get(key)
        if index is None:
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            index = self._remembered[key] = partition_for(key, len(self._topic.partitions))
        return index

    def shard_of(self, index: int) -> ShardRuntime[M]:
        """The partition's shard, which may be loading. Raises KafkaError when it is not this broker's, or
        could not be loaded just now."""
        return self._shards.get(index) or self._begin(index)

    def shards_with_data(self) -> Iterable[int]:
        """The partitions led here that anything was ever written to: those that may have a state."""
        if self._is_stopped:
            return []
        image = self._cache.image
        self.follow(image)
        topic = self._topic
        if topic is None:
            return []
        return [
            index
            for index in range(len(topic.partitions))
            if index in self._shards
            or (self._is_led(topic, index) and image.streams.of_partition(topic.topic_id, index))
        ]

    def load_all(self) -> None:
        """Begins to load the shards that may have a state and that nobody asked for yet."""
        for index in self.shards_with_data():
            if index not in self._shards:
                with suppress(KafkaError):  # it failed a moment ago, or is led elsewhere by now
                    self._begin(index)

    def load(self, key: str) -> None:
        """Begins to load the key's shard, where nobody asked for it yet."""
        index = self.partition_of(key)
        if index is not None and index not in self._shards:
            with suppress(KafkaError):  # as above
                self._begin(index)

    def loaded(self) -> list[ShardRuntime[M]]:
        """The shards that have read their log."""
        return [shard for shard in self._shards.values() if not shard.is_loading]

    # -- loading

    def _begin(self, index: int) -> ShardRuntime[M]:
        """Raises KafkaError when the shard is not this broker's, or could not be loaded just now."""
        topic = self._topic
        if not self._is_led(topic, index):
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        assert topic is not None
        loop = asyncio.get_running_loop()
        failed_at, code = self._failed.get(index, (0.0, 0))
        if code and loop.time() - failed_at < RETRY_MS / 1000:
            raise KafkaError(code)
        name = f"{self._topic_name}-{index}"
        made = ShardRuntime(
            name, self._new_machine(), self._parts, lambda ended: self._on_ended(index, ended)
        )
        self._shards[index] = made
        task = loop.create_task(self._load(topic, index, made), name=f"load {name}")
        self._loads[task] = None
        task.add_done_callback(lambda done: self._loads.pop(done, None))
        return made

    async def _load(self, topic: Topic, index: int, shard: ShardRuntime[M]) -> None:
        slow = asyncio.get_running_loop().call_later(LOAD_WAIT_S, shard.on_slow_load)
        try:
            found = self._partitions.get(topic.topic_id, index)
            partition = await asyncio.shield(found) if asyncio.isfuture(found) else found
            await shard.load(partition, self._on_loaded)
            self._failed.pop(index, None)
        except (KafkaError, MillraceError, TimeoutError) as error:
            self._failed[index] = asyncio.get_running_loop().time(), coordinator_code(error)
            if not isinstance(error, Corrupt):  # that is told for every read (damage_log.py)
                log.warning(
                    "coordinator shard %s not loaded: %s; clients ask again", shard.name, in_words(error)
                )
            shard.end(coordinator_code(error))
        except Exception as error:
            self._parts.on_failed(error)
        finally:
            slow.cancel()

    def _on_ended(self, index: int, shard: ShardRuntime[M]) -> None:
        if self._shards.get(index) is shard:
            del self._shards[index]
