"""The group coordinator of one broker: its shards, one for each partition of __consumer_offsets that is led here.

A shard is loaded when somebody first asks for one of its groups, and ends when its partition is led elsewhere or takes no more.

Not here: what a shard does (shard_loop.py), what clients ask (handlers). Keeps true: at most one shard a partition is alive; one that
could not be loaded is not tried again for `RETRY_MS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from millrace.broker.coordinators.append_queue import record_bytes_max
from millrace.broker.coordinators.config import CoordinatorSettings
from millrace.broker.coordinators.placement import OFFSETS_TOPIC, partition_for
from millrace.broker.coordinators.shard import Shard
from millrace.broker.coordinators.shard_loop import LOAD_WAIT_S, Outcome, ShardLoop, coordinator_code
from millrace.broker.damage_log import DamageLog
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.partitions.meta_stream import Room
from millrace.broker.partitions.partition import Partition
from millrace.broker.state_memory import StateMemory
from millrace.kraft.delta import MetadataDelta
from millrace.kraft.image import MetadataImage
from millrace.kraft.tables.topics import Topic
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Corrupt, MillraceError
from millrace.runtime.rand import Rand

log = logging.getLogger(__name__)

R = TypeVar("R")

RETRY_MS = 1000
STOP_WAIT_S = 5.0  # for what was decided to become durable
PLACES_MAX = 10_000  # groups whose partition is remembered


class Partitions(Protocol):
    """Of broker/partitions/directory.py."""

    def get(self, topic_id: bytes, index: int) -> Partition | asyncio.Future[Partition]: ...


class CoordinatorRooms(Room, Protocol):
    """The engine's room for data, and the part of it that coordinators have before data (s3stream/storage.py)."""

    @property
    def coordinator_room(self) -> Room: ...


class GroupCoordinator:
    """`memory` is charged for groups and offsets. `on_failed` is told of an error that must never happen: the process is to
    end, and reads its logs again."""

    def __init__(
        self,
        partitions: Partitions,
        room: CoordinatorRooms,
        cache: MetadataCache,
        settings: CoordinatorSettings,
        clock: Clock,
        judged: Clock,
        rand: Rand,
        on_failed: Callable[[BaseException], None],
        memory: StateMemory | None = None,
    ) -> None:
        """`judged`: the clock by which offsets are found to have expired (broker/known_time.py)."""
        self._memory = StateMemory() if memory is None else memory
        self._partitions = partitions
        self._room = room
        self._cache = cache
        self._settings = settings
        self._clock = clock
        self._rand = rand.split("member ids")
        self._on_failed = on_failed
        self._judged = judged
        self._image: MetadataImage | None = None  # the last one that was followed
        self._topic: Topic | None = None
        self._shards: dict[int, ShardLoop] = {}
        self._loads: dict[asyncio.Task[None], None] = {}
        self._failed: dict[int, tuple[float, int]] = {}  # partition -> when, and the code to answer with
        self._damage = DamageLog()
        self._places: dict[str, int] = {}
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"group coordinator, shards {sorted(self._shards)}"

    @property
    def settings(self) -> CoordinatorSettings:
        return self._settings

    # -- life

    def start(self) -> None:
        """Nothing is loaded before somebody asks."""
        self._follow(self._cache.image)

    async def stop(self) -> None:
        """Takes no more; answers those who wait for others of their group at once, and the rest when what they wait for is durable,
        or after `STOP_WAIT_S`. To be called while partitions still take appends."""
        self._is_stopped = True
        for task in list(self._loads):
            task.cancel()
        shards = list(self._shards.values())
        for shard in shards:
            shard.release(ErrorCode.NOT_COORDINATOR)
        try:
            async with asyncio.timeout(STOP_WAIT_S):
                for shard in shards:
                    await shard.drained()
        except TimeoutError:
            log.warning("%r: stopped before everything was durable", self)
        for shard in shards:
            shard.end(ErrorCode.NOT_COORDINATOR)

    def on_image(self, delta: MetadataDelta | None, image: MetadataImage) -> None:
        """To be told of every image. Topics that were deleted take their offsets with them; without a delta, those that are gone do."""
        self._follow(image)
        removed = {} if delta is None else delta.topics_removed
        for shard in list(self._shards.values()):
            if shard.is_loading or not (removed or delta is None):
                continue
            shard.delete_orphans()

    def _follow(self, image: MetadataImage) -> None:
        """Ends the shards whose partition is not led here any more."""
        if image is self._image:
            return
        self._image = image
        topic = image.topics.by_name(OFFSETS_TOPIC)
        if topic is self._topic:
            return
        before, self._topic = self._topic, topic
        is_same = topic is not None and before is not None and topic.topic_id == before.topic_id
        if not is_same or topic is None or before is None or len(topic.partitions) != len(before.partitions):
            self._places.clear()
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

    def ask(self, group_id: str, act: Callable[[ShardLoop], Outcome[R]], refuse: Callable[[int], R]) -> Outcome[R]:
        """What `act` gives of the group's shard, once that is loaded; or a refusal with an error code. A group that is being deleted
        in steps is refused as if it were being loaded: clients ask again."""
        index = self.place_of(group_id)
        if index is None:
            return refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        shard = self._shards.get(index)
        if shard is not None and group_id in shard.deleting:
            return refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self.ask_shard(index, act, refuse)

    def ask_shard(self, index: int, act: Callable[[ShardLoop], Outcome[R]], refuse: Callable[[int], R]) -> Outcome[R]:
        try:
            shard = self._shards.get(index) or self._begin(index)
        except KafkaError as error:
            return refuse(error.code)
        return shard.ask(act, refuse)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """An error code, at once. While the shard is loaded everybody is well, as in Kafka: sessions begin anew behind it."""
        index = self.place_of(group_id)
        if index is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            shard = self._shards.get(index) or self._begin(index)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE if shard.is_loading else shard.heartbeat(group_id, member_id, instance_id, generation)

    def place_of(self, group_id: str) -> int | None:
        """The group's partition; None while there are none, or no more."""
        if self._is_stopped:
            return None
        self._follow(self._cache.image)
        if self._topic is None:
            return None
        index = self._places.get(group_id)
        if index is None:
            if len(self._places) >= PLACES_MAX:
                self._places.clear()
            index = self._places[group_id] = partition_for(group_id, len(self._topic.partitions))
        return index

    def shards_with_data(self) -> Iterable[int]:
        """The partitions led here that anything was ever written to: those that may have groups."""
        if self._is_stopped:
            return []
        image = self._cache.image
        self._follow(image)
        topic = self._topic
        if topic is None:
            return []
        return [
            index
            for index in range(len(topic.partitions))
            if index in self._shards
            or (self._is_led(topic, index) and image.streams.of_partition(topic.topic_id, index))
        ]

    def loaded(self) -> list[Shard]:
        """What is known of the groups of every partition that is loaded here."""
        return [shard.shard for shard in self._shards.values() if not shard.is_loading]

    # -- loading

    def _begin(self, index: int) -> ShardLoop:
        """Raises KafkaError when the shard is not this broker's, or could not be loaded just now."""
        topic = self._topic
        if not self._is_led(topic, index):
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        assert topic is not None
        loop = asyncio.get_running_loop()
        failed_at, code = self._failed.get(index, (0.0, 0))
        if code and loop.time() - failed_at < RETRY_MS / 1000:
            raise KafkaError(code)
        shard = Shard(self._settings, self._new_id, record_bytes_max(self._room), self._memory)
        made = ShardLoop(
            shard,
            self._settings,
            self._room.coordinator_room,
            self._room,
            self._clock,
            self._judged,
            lambda ended: self._on_ended(index, ended),
            self._on_failed,
        )
        self._shards[index] = made
        task = loop.create_task(self._load(topic, index, made), name=f"load {OFFSETS_TOPIC}-{index}")
        self._loads[task] = None
        task.add_done_callback(lambda done: self._loads.pop(done, None))
        return made

    async def _load(self, topic: Topic, index: int, shard: ShardLoop) -> None:
        slow = asyncio.get_running_loop().call_later(LOAD_WAIT_S, shard.on_slow_load)
        try:
            found = self._partitions.get(topic.topic_id, index)
            partition = await asyncio.shield(found) if asyncio.isfuture(found) else found
            await shard.load(partition, self._topic_id)
            self._failed.pop(index, None)
        except (KafkaError, MillraceError, TimeoutError) as error:
            self._failed[index] = asyncio.get_running_loop().time(), coordinator_code(error)
            name = f"{OFFSETS_TOPIC}-{index}"
            if isinstance(error, Corrupt):
                self._damage.note(asyncio.get_running_loop().time(), name, error)
            else:
                log.warning("%s was not loaded: %r", name, error)
            shard.end(coordinator_code(error))
        except Exception as error:
            self._on_failed(error)
        finally:
            slow.cancel()

    def _topic_id(self, name: str) -> bytes | None:
        topic = self._cache.image.topics.by_name(name)
        return None if topic is None else topic.topic_id

    def _on_ended(self, index: int, shard: ShardLoop) -> None:
        if self._shards.get(index) is shard:
            del self._shards[index]

    def _new_id(self) -> str:
        text = self._rand.uuid().hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
