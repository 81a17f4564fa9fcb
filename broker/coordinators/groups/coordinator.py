"""The coordinator of classic groups of one broker: GroupStateMachines over the partitions of
__consumer_offsets.

Not here: loading, appending, timers (coordinators/runtime), what is decided (state_machine.py), what clients
ask (handlers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol, TypeVar

from millrace.broker.coordinators.groups.config import OFFSETS_TOPIC, CoordinatorSettings
from millrace.broker.coordinators.groups.state_machine import GroupStateMachine
from millrace.broker.coordinators.runtime.append_queue import record_bytes_max
from millrace.broker.coordinators.runtime.deferred import Outcome
from millrace.broker.coordinators.runtime.shard import ShardParts, ShardRuntime
from millrace.broker.coordinators.runtime.shards import CoordinatorRuntime, Partitions
from millrace.broker.coordinators.runtime.state_machine import Decision
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.partitions.meta_stream import Room
from millrace.broker.state_memory import StateMemory
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.clock import Clock
from millrace.runtime.rand import Rand
from millrace.runtime.scheduling.yield_queue import YieldQueue

R = TypeVar("R")
GroupShard = ShardRuntime[GroupStateMachine]

ORPHANED = "offsets of deleted topics"
# A shard of so many offsets, or fewer, looks at them at once when a topic was deleted; a larger one waits its
# turn, since whoever tells of topics (a commit to the metadata log) tells all shards within one turn of the
# loop.
FEW_OFFSETS = 100


class CoordinatorRooms(Room, Protocol):
    """The engine's room for data, and the part of it that coordinators have before data
    (s3stream/storage.py)."""

    @property
    def coordinator_room(self) -> Room: ...


class GroupCoordinator:
    """`memory` is charged for groups and offsets. `on_failed` is told of an error that must never happen: the
    process is to end, and reads its logs again."""

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
        yield_queue: YieldQueue,
        memory: StateMemory | None = None,
    ) -> None:
        """`judged`: the clock by which offsets are found to have expired (broker/identity/known_time.py)."""
        self.settings = settings
        self.deleting: set[str] = set()  # groups whose offsets are being deleted in steps
        self._memory = StateMemory() if memory is None else memory
        self._room = room
        self._cache = cache
        self._rand = rand.split("member ids")
        interval_ms = settings.offsets_retention_check_interval_ms
        parts = ShardParts(
            room.coordinator_room, room, clock, judged, interval_ms, self._memory, on_failed, yield_queue
        )
        self._shards = CoordinatorRuntime(
            OFFSETS_TOPIC, partitions, cache, parts, self._new_machine, self._delete_orphaned_offsets
        )

    def __repr__(self) -> str:
        return f"group coordinator, {self._shards!r}"

    # -- life

    def start(self) -> None:
        """Nothing is loaded before somebody asks."""
        self._shards.follow(self._cache.image)

    async def stop(self) -> None:
        """As CoordinatorRuntime.stop: members that wait for others of their group are answered at once."""
        await self._shards.stop()

    def on_image(self, delta: MetadataDelta | None, image: MetadataImage) -> None:
        """To be told of every image. Topics that were deleted take their offsets with them; without a delta,
        those that are gone do."""
        self._shards.follow(image)
        if delta is None or delta.topics_removed:
            for shard in self._shards.loaded():
                self._delete_orphaned_offsets(shard)

    # -- asking

    def ask(
        self, group_id: str, act: Callable[[GroupShard], Outcome[R]], refuse: Callable[[int], R]
    ) -> Outcome[R]:
        """What `act` gives of the group's shard, once that is loaded; or a refusal with an error code. A
        group that is being deleted in steps is refused as if it were being loaded: clients ask again."""
        if group_id in self.deleting:
            return refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self._shards.ask(group_id, act, refuse)

    def ask_shard(
        self, index: int, act: Callable[[GroupShard], Outcome[R]], refuse: Callable[[int], R]
    ) -> Outcome[R]:
        """As `ask`, of all groups of a partition."""
        return self._shards.ask_shard(index, act, refuse)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """An error code, at once. While the shard is loaded everybody is well, as in Kafka: sessions begin
        anew behind it."""
        index = self._shards.partition_of(group_id)
        if index is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            shard = self._shards.shard_of(index)
        except KafkaError as error:
            return error.code
        if shard.is_loading:
            return ErrorCode.NONE
        code, decision = shard.machine.on_heartbeat(
            group_id, member_id, instance_id, generation, shard.tick_ms()
        )
        if decision is not None:
            shard.carry_out(decision)
        return code

    def shards_with_data(self) -> Iterable[int]:
        """The partitions led here that may have groups."""
        return self._shards.shards_with_data()

    def load(self, group_id: str) -> None:
        """Begin to load the group's shard, where nobody asked for it yet."""
        self._shards.load(group_id)

    def load_all(self) -> None:
        """Begin to load the shards that may have groups and that nobody asked for yet."""
        self._shards.load_all()

    def loaded(self) -> list[GroupStateMachine]:
        """What is known of the groups of every partition that is loaded here."""
        return [shard.machine for shard in self._shards.loaded()]

    # -- for the runtime

    def _new_machine(self) -> GroupStateMachine:
        return GroupStateMachine(self.settings, self._new_id, record_bytes_max(self._room), self._memory)

    def _new_id(self) -> str:
        text = self._rand.uuid().hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    # -- topics that are deleted

    def _delete_orphaned_offsets(self, shard: GroupShard) -> None:
        """Of topics that are gone, some at a time; topics may have gone while the shard was not loaded, too.
        Whoever asks before it is done may still be told an offset of a topic that there is not."""
        is_urgent = shard.machine.offsets.count <= FEW_OFFSETS
        shard.clean_up(ORPHANED, partial(self._orphaned, shard), is_urgent=is_urgent)

    def _orphaned(self, shard: GroupShard) -> Iterator[Decision]:
        for positions in shard.machine.offsets.orphans(self._topic_id):
            yield shard.machine.delete_offsets(positions, shard.now())

    def _topic_id(self, name: str) -> bytes | None:
        topic = self._cache.image.topics.by_name(name)
        return None if topic is None else topic.topic_id
