"""A broker's inside with a group coordinator over real partitions, in virtual time: timers of hours cost
nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from millrace.broker.coordinators.groups.config import OFFSETS_TOPIC, CoordinatorSettings
from millrace.broker.coordinators.groups.coordinator import GroupCoordinator, GroupShard
from millrace.broker.coordinators.groups.state_machine import GroupStateMachine
from millrace.broker.coordinators.runtime.partitioning import partition_for
from millrace.broker.handlers.delete_groups import DeleteGroups
from millrace.broker.handlers.describe_groups import DescribeGroups
from millrace.broker.handlers.heartbeat import Heartbeat
from millrace.broker.handlers.join_group import JoinGroup
from millrace.broker.handlers.leave_group import LeaveGroup
from millrace.broker.handlers.list_groups import ListGroups
from millrace.broker.handlers.offset_commit import OffsetCommit
from millrace.broker.handlers.offset_delete import OffsetDelete
from millrace.broker.handlers.offset_fetch import OffsetFetch
from millrace.broker.handlers.sync_group import SyncGroup
from millrace.broker.state_memory import UNBOUNDED_BYTES, StateMemory
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.protocol.coordinator_records import (
    ConsumerProtocolSubscription,
    CoordinatorKey,
    CoordinatorValue,
    decode_key,
    decode_value,
    encode_subscription,
)
from millrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from millrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from millrace.protocol.records import iter_records
from millrace.protocol.stream_records import StreamRecord
from millrace.runtime.disk import Buffer
from millrace.runtime.rand import Rand
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.ids import OpenedStream, StreamRole
from millrace.wal.log import WalRecord
from tests.broker.broker_fixture import NODE, BrokerFixture, Opener, topic_id
from tests.broker.partitions.build import FIXTURES
from tests.s3stream.build import MemoryWal, World
from tests.s3stream.build import run as run_virtually

T = TypeVar("T")
SETTINGS = CoordinatorSettings(initial_rebalance_delay_ms=0)
HANDLERS = {
    8: OffsetCommit,
    9: OffsetFetch,
    11: JoinGroup,
    12: Heartbeat,
    13: LeaveGroup,
    14: SyncGroup,
    15: DescribeGroups,
    16: ListGroups,
    42: DeleteGroups,
    47: OffsetDelete,
}
WITH_CACHE = (8, 9, 47)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """A test's coroutine in virtual time; the engines that it built are stopped."""

    async def whole() -> None:
        try:
            await scenario
        finally:
            while FIXTURES:
                await FIXTURES.pop().engine._stop()

    run_virtually(whole())


class NarrowWal(MemoryWal):
    """Refuses what is longer than a record of it may be, as the real ones do."""

    def __init__(self, record_bytes_max: int) -> None:
        super().__init__()
        self.max_record_bytes = record_bytes_max

    def append(self, *parts: Buffer, tail_crc: int | None = None) -> WalRecord:
        size_bytes = sum(map(len, parts))
        if size_bytes > self.max_record_bytes:
            raise ValueError(f"a payload of {size_bytes} bytes; the log takes {self.max_record_bytes}")
        return super().append(*parts, tail_crc=tail_crc)


class TellingOpener(Opener):
    """As the controller does, it says in the metadata which streams a partition has."""

    async def open_partition(
        self, topic_id: bytes, index: int, leader_epoch: int, roles: Sequence[StreamRole]
    ) -> dict[StreamRole, OpenedStream]:
        opened = await super().open_partition(topic_id, index, leader_epoch, roles)
        records = [
            StreamRecord(each.stream_id, topic_id, index, role, each.epoch, NODE, 1, each.start, each.end)
            for role, each in opened.items()
        ]
        self._fixture.publish(*records)
        return opened


class GroupFixture(BrokerFixture):
    """`offsets_partitions` 0: there is no __consumer_offsets yet. Topics `t` and `u` have four partitions
    each."""

    def __init__(
        self,
        world: World | None = None,
        *,
        offsets_partitions: int = 1,
        settings: CoordinatorSettings = SETTINGS,
        states_bytes: int = UNBOUNDED_BYTES,
        **engine_settings: int,
    ) -> None:
        super().__init__(world, **engine_settings)
        self.opener = TellingOpener(self)
        self.settings = settings
        self.states_bytes = states_bytes
        self.failures: list[BaseException] = []
        for name in ("t", "u"):
            self.make_topic(name, 4)
        if offsets_partitions:
            self.make_topic(OFFSETS_TOPIC, offsets_partitions, cleanup_policy="compact")

    async def start(self) -> GroupFixture:
        await super().start()
        self.coordinator.start()
        self.handlers = {
            key: made(self.coordinator, self.cache) if key in WITH_CACHE else made(self.coordinator)  # type: ignore[operator]
            for key, made in HANDLERS.items()
        }
        return self

    def _successor(self) -> MetadataPublisher:
        publisher = super()._successor()
        self.memory = StateMemory(self.states_bytes)
        self.coordinator = GroupCoordinator(
            self.directory,
            self.engine,
            self.cache,
            self.settings,
            self.clock,
            self.judged,
            Rand(b"seed"),
            self.failures.append,
            YieldQueue(),
            self.memory,
        )
        publisher.subscribe(self.coordinator.on_image)
        return publisher

    # -- asking

    def call(self, key: int, version: int, request: Any, client_id: str = "c") -> Any:
        """What the handler gives back at once."""
        return self.begin(self.handlers[key], key, version, request, client_id)

    async def ask_for(self, key: int, version: int, request: Any, client_id: str = "c") -> Any:
        return await self.finish(self.call(key, version, request, client_id), key, version)

    def later(self, key: int, version: int, request: Any, client_id: str = "c") -> asyncio.Task[Any]:
        """The response to be, of a request that is begun now."""
        return asyncio.ensure_future(self.finish(self.call(key, version, request, client_id), key, version))

    async def confirmed(self, asking: asyncio.Future[T]) -> T:
        """What comes of it on a WAL that is durable only when told: it is told until then."""
        while not asking.done():
            await asyncio.sleep(0)
            self.world.wal.confirm()
        return asking.result()

    async def join(self, group_id: str, client_id: str = "c", member_id: str = "", **fields: Any) -> Any:
        return await self.ask_for(11, 3, join_request(group_id, member_id, **fields), client_id)

    async def stable_member(
        self, group_id: str, client_id: str = "c", topics: Sequence[str] = ("t",), **fields: Any
    ) -> Any:
        """Joins a group that is empty and takes everything; gives the response to the join."""
        joined = await self.join(group_id, client_id, topics=topics, **fields)
        assert not joined.error_code, joined
        given = [SyncGroupRequestAssignment(joined.member_id, b"all")]
        synced = await self.ask_for(
            14, 3, SyncGroupRequest(group_id, joined.generation_id, joined.member_id, None, None, None, given)
        )
        assert (synced.error_code, synced.assignment) == (0, b"all")
        return joined

    async def commit(
        self, group_id: str, offsets: Mapping[tuple[str, int], int], version: int = 9, **fields: Any
    ) -> dict[tuple[str, int], int]:
        """Error codes by topic and partition."""
        response = await self.ask_for(8, version, commit_request(group_id, offsets, version, **fields))
        return codes_of(response)

    async def fetch_offsets(
        self, group_id: str, *places: tuple[str, int], version: int = 7
    ) -> dict[tuple[str, int], int]:
        """Offsets by topic and partition, all of the group's when no place is named."""
        response = await self.ask_for(9, version, fetch_offsets_request(version, {group_id: places or None}))
        topics = response.topics if version < 8 else response.groups[0].topics
        return {
            (topic.name, part.partition_index): part.committed_offset
            for topic in topics
            for part in topic.partitions
        }

    # -- looking inside

    def shard(self, index: int = 0) -> GroupShard:
        return self.coordinator._shards._shards[index]

    async def loaded(self, index: int = 0) -> GroupStateMachine:
        """The shard's state, loaded if it was not."""
        outcome = self.coordinator.ask_shard(index, lambda shard: shard.machine, _fail)
        return await outcome if asyncio.isfuture(outcome) else outcome

    async def log(self, index: int = 0) -> list[tuple[CoordinatorKey, CoordinatorValue | None]]:
        """All that is in an offsets partition, from its log start."""
        partition = await self.partition(OFFSETS_TOPIC, index)
        found: list[tuple[CoordinatorKey, CoordinatorValue | None]] = []
        offset = partition.log_start_offset
        while offset < partition.high_watermark:
            for entry in await partition.data.fetch(offset, partition.high_watermark, 1 << 20):
                for record in iter_records(entry.data):
                    key = decode_key(record.key or b"")
                    assert key is not None
                    found.append((key, None if record.value is None else decode_value(key, record.value)))
                offset = entry.end
        return found

    def set(self, **values: int) -> None:
        """Settings of the coordinator after the next start."""
        self.settings = replace(self.settings, **values)


def _fail(code: int) -> GroupStateMachine:
    raise AssertionError(code)


def snapshot(shard: GroupStateMachine) -> Any:
    """What a shard's log says."""
    offsets = {group_id: shard.offsets.of_group(group_id) for group_id in sorted(shard.offsets.groups())}
    return {group_id: shard.stored[group_id] for group_id in sorted(shard.stored)}, offsets, shard.live_bytes


def group_at(index: int, partitions_count: int, number: int = 0) -> str:
    """The name of a group that a partition coordinates."""
    names = (f"group-{each}" for each in range(10_000))
    return [name for name in names if partition_for(name, partitions_count) == index][number]


def subscription(topics: Sequence[str]) -> bytes:
    return encode_subscription(ConsumerProtocolSubscription(list(topics)))


def join_request(
    group_id: str, member_id: str = "", *, topics: Sequence[str] = ("t",), **fields: Any
) -> JoinGroupRequest:
    values = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol("range", subscription(topics))],
        **fields,
    }
    return JoinGroupRequest(group_id=group_id, member_id=member_id, **values)


def commit_request(
    group_id: str,
    offsets: Mapping[tuple[str, int], int],
    version: int,
    *,
    generation: int = -1,
    member_id: str = "",
    metadata: str | None = "",
    **fields: Any,
) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, partition), offset in offsets.items():
        topic = topics.setdefault(name, OffsetCommitRequestTopic(name, topic_id(name)))
        topic.partitions.append(OffsetCommitRequestPartition(partition, offset, 5, metadata))
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=list(topics.values()),
        **fields,
    )


def codes_of(response: Any) -> dict[tuple[str, int], int]:
    """Of an OffsetCommit or OffsetDelete; topics by name, or by the name that their id is made of."""
    return {
        (topic.name or topic.topic_id.rstrip(b".").decode(), part.partition_index): part.error_code
        for topic in response.topics
        for part in topic.partitions
    }


def fetch_offsets_request(
    version: int, wanted: Mapping[str, Sequence[tuple[str, int]] | None], **fields: Any
) -> OffsetFetchRequest:
    """`wanted`: group -> places, None for all."""
    groups = []
    for group_id, places in wanted.items():
        topics: dict[str, list[int]] = {}
        for name, partition in places or ():
            topics.setdefault(name, []).append(partition)
        asked = [OffsetFetchRequestTopics(name, topic_id(name), indexes) for name, indexes in topics.items()]
        groups.append(OffsetFetchRequestGroup(group_id, topics=None if places is None else asked))
    if version >= 8:
        return OffsetFetchRequest(groups=groups, **fields)
    (only,) = groups
    old = (
        None
        if only.topics is None
        else [OffsetFetchRequestTopic(t.name, t.partition_indexes) for t in only.topics]
    )
    return OffsetFetchRequest(group_id=only.group_id, topics=old, **fields)
