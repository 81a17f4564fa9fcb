"""A broker's inside without its shell: engine, metadata, directory and handlers, asked with frames as clients
send them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from millrace.broker.handlers.fetch import Fetch
from millrace.broker.handlers.produce import Produce
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.partitions.partition import Partition
from millrace.broker.requests.fetch_sessions import FetchSessions
from millrace.broker.requests.request import ConnectionInfo, Encoded, RequestContext, Verdict
from millrace.broker.settings.addresses import AdvertisedAddresses, Endpoint
from millrace.kraft.image.delta import apply_records
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.kraft.tables.features import MILLRACE_VERSION
from millrace.kraft.topic_configs import ConfigLookup
from millrace.protocol.apis import API
from millrace.protocol.codec import decode_request, decode_response, encode_request, encode_response
from millrace.protocol.errors import TooManyElements
from millrace.protocol.header import decode_request_header
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.protocol.metadata_records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RecordEndpoint,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.ids import OpenedStream, StreamRole
from tests.broker.partitions.build import Fixture
from tests.broker.work import new_work
from tests.s3stream.build import World
from tests.whole import decode_whole

PRODUCE = 0
NODE, OTHER = 1, 2
LISTENER = "PLAINTEXT"
NO_UUID = bytes(16)


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b".")[:16]


def connection(number: int = 1) -> ConnectionInfo:
    return ConnectionInfo(number, LISTENER, "127.0.0.1", 9092, "127.0.0.1")


class Opener:
    """The controller's part in opening: streams by partition, made when first asked for. `before` may delay
    or refuse."""

    def __init__(self, fixture: BrokerFixture) -> None:
        self._fixture = fixture
        self._ids: dict[tuple[bytes, int, StreamRole], int] = {}
        self.opened: list[tuple[bytes, int, int]] = []
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None

    async def open_partition(
        self, topic_id: bytes, index: int, leader_epoch: int, roles: Sequence[StreamRole]
    ) -> dict[StreamRole, OpenedStream]:
        self.opened.append((topic_id, index, leader_epoch))
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        ids = {role: self._ids.setdefault((topic_id, index, role), 1000 + len(self._ids)) for role in roles}
        return {role: self._fixture.world.catalog.open(ids[role]) for role in roles}

    def streams_of(self, topic_id: bytes, index: int) -> list[int]:
        return [number for (found, at, _), number in self._ids.items() if (found, at) == (topic_id, index)]


class BrokerFixture(Fixture):
    """`static` are the broker's own keys of its properties file; `level` is the finalized
    millrace.version."""

    def __init__(
        self,
        world: World | None = None,
        static: Mapping[str, str] | None = None,
        *,
        level: int = 1,
        **engine_settings: int,
    ) -> None:
        super().__init__(world, **engine_settings)
        self.publisher = MetadataPublisher()
        self.cache = MetadataCache(self.publisher, "cluster", NODE)
        self.cache.addresses = AdvertisedAddresses([Endpoint(LISTENER, "127.0.0.1", 9092)])
        self.opener = Opener(self)
        self.static = dict(static or {})
        self._offset = 0
        self.connection = connection()
        self.publish(FeatureLevelRecord(MILLRACE_VERSION, level), *(_broker(node) for node in (NODE, OTHER)))

    async def start(self) -> BrokerFixture:
        await super().start()
        lookup = ConfigLookup(NODE, self.static)
        self.directory = PartitionDirectory(
            NODE, self.publisher.image, self.opener, self.engine, lookup.effective_all, self.clock
        )
        self.publisher = self._successor()
        self.sessions = FetchSessions(count(100).__next__)
        self.produce_handler = Produce(
            self.directory, self.cache, self.engine, self.clock, self.unpacking, YieldQueue()
        )
        self.fetch_handler = Fetch(self.directory, self.cache, self.sessions, YieldQueue())
        return self

    def _successor(self) -> MetadataPublisher:
        """After a restart the image is what it was, and the former process's directory hears no more."""
        publisher = MetadataPublisher(self.publisher.image)
        publisher.subscribe(self.directory.on_image)
        self.cache._publisher = publisher
        return publisher

    def publish(self, *records: Any) -> None:
        self._offset += 1
        self.publisher.publish(*apply_records(self.publisher.image, records, self._offset, 0))

    def make_topic(self, name: str, partitions: int = 1, *, leader: int = NODE, **configs: str) -> bytes:
        """`configs` with underscores for dots."""
        made = topic_id(name)
        self.publish(
            TopicRecord(name, made),
            *(
                PartitionRecord(
                    index, made, [leader], [leader], leader=leader, leader_epoch=0, partition_epoch=0
                )
                for index in range(partitions)
            ),
            *(ConfigRecord(2, name, key.replace("_", "."), value) for key, value in configs.items()),
        )
        return made

    def set_config(self, name: str, key: str, value: str | None) -> None:
        self.publish(ConfigRecord(2, name, key, value))

    def move(self, name: str, index: int, leader: int) -> None:
        self.publish(PartitionChangeRecord(index, topic_id(name), leader=leader))

    def fence(self, node_id: int) -> None:
        epoch = self.publisher.image.brokers.by_id[node_id].epoch
        self.publish(BrokerRegistrationChangeRecord(node_id, epoch, fenced=1))

    def delete_topic(self, name: str) -> None:
        self.publish(RemoveTopicRecord(topic_id(name)))

    async def partition(self, name: str, index: int = 0) -> Partition:
        found = self.directory.get(topic_id(name), index)
        return found if isinstance(found, Partition) else await asyncio.shield(found)

    # -- asking

    def begin(
        self,
        handler: Any,
        key: int,
        version: int,
        request: Any,
        client_id: str = "test",
        to: ConnectionInfo | None = None,
    ) -> Any:
        """What the handler gives back at once for a request that went through the codec. The memory of a
        Produce's frame is overwritten then, as by the next read of a socket, and nobody may view it any
        more."""
        memory = bytearray(encode_request(API[key], version, 7, client_id, request))
        frame = memoryview(memory)[4:].toreadonly()
        header, position = decode_request_header(frame)
        try:
            decoded = decode_request(API[key], version, frame, position)
        except TooManyElements:
            decoded = decode_whole(API[key], version, bytes(frame), position)
        context = RequestContext(
            key, version, header.correlation_id, header.client_id or "", to or self.connection, new_work
        )
        outcome = handler.handle(context, decoded)
        if key == PRODUCE:
            del frame
            memory[:] = b"\xee" * len(memory)
            memory.clear()  # BufferError while it is viewed
        return outcome

    async def finish(self, outcome: Any, key: int, version: int) -> Any:
        """The response as its client decodes it, or a verdict."""
        if asyncio.isfuture(outcome):
            outcome = await asyncio.shield(outcome)
        elif asyncio.iscoroutine(outcome):
            outcome = await outcome
        if isinstance(outcome, Verdict):
            return outcome
        is_encoded = isinstance(outcome, Encoded)
        frame = b"".join(outcome if is_encoded else encode_response(API[key], version, 7, outcome))
        return decode_response(API[key], version, memoryview(frame)[4:])[1]

    async def ask(self, handler: Any, key: int, version: int, request: Any, client_id: str = "test") -> Any:
        return await self.finish(self.begin(handler, key, version, request, client_id), key, version)

    async def produce(  # type: ignore[override]
        self, data: Mapping[tuple[str, int], memoryview | None], version: int = 9, **fields: Any
    ) -> Any:
        return await self.ask(self.produce_handler, 0, version, produce_request(data, version, **fields))

    async def fetch(self, wanted: Mapping[tuple[str, int], int], version: int = 12, **fields: Any) -> Any:
        return await self.ask(self.fetch_handler, 1, version, fetch_request(wanted, version, **fields))


def _broker(node: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=node,
        broker_epoch=node,
        end_points=[RecordEndpoint(LISTENER, f"host{node}", 9092, 0)],
        fenced=False,
        rack=None,
    )


def produce_request(
    data: Mapping[tuple[str, int], memoryview | None],
    version: int,
    *,
    acks: int = -1,
    timeout_ms: int = 5000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    topics: dict[str, TopicProduceData] = {}
    for (name, index), records in data.items():
        topic = topics.setdefault(name, TopicProduceData(name, topic_id(name)))
        topic.partition_data.append(PartitionProduceData(index, records))
    return ProduceRequest(transactional_id, acks, timeout_ms, list(topics.values()))


def fetch_request(
    wanted: Mapping[tuple[str, int], int],
    version: int,
    *,
    max_wait_ms: int = 0,
    partition_max_bytes: int = 1 << 20,
    forgotten: Sequence[tuple[str, int]] = (),
    leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    **fields: Any,
) -> FetchRequest:
    """`wanted`: (topic, partition) -> offset. Other fields are the request's own."""
    topics: dict[str, FetchTopic] = {}
    for (name, index), offset in wanted.items():
        topic = topics.setdefault(name, FetchTopic(name, topic_id(name)))
        asked = FetchPartition(index, leader_epoch, offset, partition_max_bytes=partition_max_bytes)
        asked.last_fetched_epoch = last_fetched_epoch
        topic.partitions.append(asked)
    gone = [ForgottenTopic(name, topic_id(name), [index]) for name, index in forgotten]
    values = {"min_bytes": 1, **fields}
    return FetchRequest(
        max_wait_ms=max_wait_ms, topics=list(topics.values()), forgotten_topics_data=gone, **values
    )


def parts_of(response: Any) -> dict[tuple[str, int], Any]:
    """A response's partitions by (topic name or id as text, index), for Produce and Fetch alike."""
    found = {}
    for topic in response.responses:
        is_produce = hasattr(topic, "partition_responses")
        name = (topic.name if is_produce else topic.topic) or topic.topic_id.rstrip(b".").decode()
        for part in topic.partition_responses if is_produce else topic.partitions:
            found[name, part.index if is_produce else part.partition_index] = part
    return found
