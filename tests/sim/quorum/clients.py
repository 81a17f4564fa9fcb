"""Who asks the controllers for something: administrators and brokers, each with its own topics and streams.

They ask whoever is thought to lead, again after a refusal, and remember that after silence the outcome is
unknown. What they read they read from the image of a node that is up, as brokers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.streams import StreamState
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.close_streams import CloseStreamsRequest, StreamClose
from millrace.protocol.messages.commit_upload import CommitUploadRequest, UploadedRange
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace.protocol.messages.open_partition_streams import OpenPartitionStreamsRequest
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest
from millrace.protocol.messages.remove_objects import RemoveObjectsRequest
from millrace.protocol.messages.trim_streams import StreamTrim, TrimStreamsRequest
from millrace.runtime.rand import Rand
from tests.sim.quorum.gate import Answer, Gate, Refused, Unknown
from tests.sim.quorum.history import CONFIG, FAR, History, TopicStory
from tests.sim.quorum.replica import CLUSTER, Replica

TOPICS_MAX = 5  # of one administrator
TOPIC_RESOURCE = 2
MANY_PARTITIONS = 600  # decided, encoded and applied in several iterations of the loop
BAD_NAME = "no/such?name"
AT_ONCE = 12


class Client:
    def __init__(
        self, name: str, gate: Gate, replicas: Mapping[int, Replica], history: History, rand: Rand
    ) -> None:
        self.name = name
        self._gate = gate
        self._replicas = replicas
        self._history = history
        self._rand = rand.split(name)
        self._count = 0

    async def run(self, is_over: Callable[[], bool], pause_ms: int) -> None:
        while not is_over():
            try:
                await self._do_something()
            except (Refused, Unknown):
                await asyncio.sleep(self._rand.below(2 * pause_ms) / 1000)
            await asyncio.sleep(self._rand.below(2 * pause_ms) / 1000)

    async def _do_something(self) -> None:
        raise NotImplementedError

    def _chosen(self, *ways: tuple[int, Callable[[], Any]]) -> Any:
        """One of the ways, by weight."""
        draw = self._rand.below(sum(weight for weight, _ in ways))
        for weight, way in ways:
            draw -= weight
            if draw < 0:
                return way()
        raise AssertionError

    def _image(self) -> MetadataImage | None:
        up = [node.publisher.image for one in self._replicas.values() if (node := one.node) is not None]
        return up[self._rand.below(len(up))] if up else None


class Admin(Client):
    """Makes, configures and deletes topics of its own; a name is asked for once, but after silence."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._unsure: list[str] = []  # made, or not
        self._value = 0

    async def _do_something(self) -> None:
        await self._chosen(
            (6, self._create), (3, self._configure), (2, self._ask_again), (1, self._ask_amiss)
        )

    def _mine(self) -> list[str]:
        return [
            name
            for name, story in self._history.topics.items()
            if name.startswith(f"{self.name}-") and story.told_at < FAR and not story.is_deletion_asked
        ]

    async def _create(self) -> None:
        mine = self._mine()
        if len(mine) >= TOPICS_MAX:
            await self._delete(mine[self._rand.below(len(mine))])
            return
        self._count += 1
        name = f"{self.name}-{self._count}"
        self._history.topics[name] = TopicStory()
        node_id = 1 + self._rand.below(len(self._replicas)) if not self._rand.below(8) else 0
        is_large = not self._rand.below(200)
        self._gate.hits["command in several turns"] += is_large
        partitions = MANY_PARTITIONS if is_large else 1 + self._rand.below(3)
        try:
            await self._ask_for(CreatableTopic(name, partitions, 1), node_id)
        except Refused as refused:
            del self._history.topics[name]
            self._history.on_refused(name, str(refused))
            raise
        except Unknown:
            self._unsure.append(name)
            raise
        if is_large:
            await self._delete(name)

    async def _ask_for(self, topic: CreatableTopic, node_id: int = 0) -> None:
        name = topic.name
        answer = await self._ask_to_create(topic, node_id)
        result = answer.response.topics[0]
        if result.error_code == 0:
            self._history.on_topic(name, result.topic_id, answer.image)
        elif result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            self._history.on_topic(name, None, answer.image)
        else:
            raise Refused(f"code {result.error_code}")

    async def _ask_to_create(self, topic: CreatableTopic, node_id: int = 0) -> Answer:
        try:
            return await self._gate.ask(CreateTopicsRequest([topic]), node_id)
        except Unknown:
            if topic.name in self._history.topics:
                self._history.topics[topic.name].is_loose = True
            raise

    async def _ask_again(self) -> None:
        """For what may be there by now."""
        if self._unsure:
            name = self._unsure.pop(self._rand.below(len(self._unsure)))
            try:
                await self._ask_for(CreatableTopic(name, 1, 1))
            except (Refused, Unknown):
                self._unsure.append(name)
                raise

    async def _ask_amiss(self) -> None:
        """For what is refused: a name that is none, or that another topic has."""
        mine = self._mine()
        name = mine[self._rand.below(len(mine))] if mine and self._rand.below(2) else f"{self.name}{BAD_NAME}"
        answer = await self._ask_to_create(CreatableTopic(name, 4, 1))
        code = answer.response.topics[0].error_code
        if name in self._history.topics:
            self._history.on_topic(name, None, answer.image)
        else:
            self._history.on_refused(name, f"code {code}")

    async def _delete(self, name: str) -> None:
        self._history.topics[name].is_deletion_asked = True
        answer = await self._gate.ask(DeleteTopicsRequest([DeleteTopicState(name)]))
        code = answer.response.responses[0].error_code
        if code in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self._history.on_deleted(name, answer.image)

    async def _configure(self) -> None:
        mine = self._mine()
        if not mine:
            return
        name = mine[self._rand.below(len(mine))]
        self._value += 1
        value, story = 1_000_000 + self._value, self._history.topics[name]
        change = AlterConfigsResource(TOPIC_RESOURCE, name, [AlterableConfig(CONFIG, 0, str(value))])
        try:
            answer = await self._gate.ask(IncrementalAlterConfigsRequest([change]))
        except Unknown:
            story.unknown_values[value] = None
            raise
        if answer.response.responses[0].error_code == 0:
            self._history.on_configured(name, value, answer.image)


class Broker(Client):
    """Registers, prepares objects, opens streams and commits what it would have uploaded."""

    def __init__(self, broker_id: int, *args: Any) -> None:
        super().__init__(f"broker{broker_id}", *args)
        self.broker_id = broker_id
        self._epoch = -1
        self._objects: list[int] = []  # prepared, not used yet

    async def _do_something(self) -> None:
        if self._epoch < 0 or not self._rand.below(60):
            await self._register()
            return
        await self._chosen(
            (4, self._prepare),
            (4, self._open),
            (6, self._commit),
            (2, self._trim),
            (2, self._close),
            (1, self._remove),
            (3, self._heartbeat),
            (2, self._allocate),
        )

    async def _ask(self, request: Any) -> Answer | None:
        """None where it was refused; where the broker is not the one registered, it registers next."""
        answer = await self._gate.ask(request)
        code = answer.response.error_code
        if code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            self._epoch = -1
        return None if code else answer

    async def register(self) -> None:
        """Which nothing but the quorum can keep it from."""
        await self._register()

    async def _register(self) -> None:
        self._count += 1
        request = BrokerRegistrationRequest(self.broker_id, CLUSTER, self._rand.uuid())
        self._epoch = -1
        answer = await self._ask(request)
        if answer is not None:
            self._epoch = answer.response.broker_epoch
            whose = f"{self.name}.{self._count}"
            self._history.on_registered(self.broker_id, self._epoch, whose, answer.image)

    async def _heartbeat(self) -> None:
        image = self._image()
        offset = image.offset if image is not None else 0
        wants_fence = not self._rand.below(6)
        await self._ask(BrokerHeartbeatRequest(self.broker_id, self._epoch, offset, wants_fence))

    async def _allocate(self) -> None:
        answer = await self._ask(AllocateProducerIdsRequest(self.broker_id, self._epoch))
        if answer is not None:
            found = answer.response
            self._history.on_producer_ids(found.producer_id_start, found.producer_id_len, answer.image)

    async def _prepare(self) -> None:
        self._count += 1
        whose = f"{self.name}.{self._count}"
        count, ttl_ms = 1 + self._rand.below(4), 300 + self._rand.below(4_000)
        answer = await self._ask(PrepareObjectsRequest(self.broker_id, self._epoch, count, ttl_ms))
        if answer is not None:
            first = answer.response.first_object_id
            self._history.on_objects(first, count, whose, answer.image)
            self._objects += range(first, first + count)

    async def _open(self) -> None:
        image = self._image()
        places = [
            (topic.topic_id, index, state.leader_epoch)
            for topic in (image.topics if image is not None else ())
            for index, state in enumerate(topic.partitions[:4])
            if state.leader == self.broker_id
        ]
        if not places:
            return
        topic_id, index, epoch = places[self._rand.below(len(places))]
        answer = await self._ask(
            OpenPartitionStreamsRequest(self.broker_id, self._epoch, topic_id, index, epoch, [0, 1])
        )
        for opened in answer.response.streams if answer is not None else ():
            assert answer is not None
            self._history.on_stream(topic_id, index, opened.role, opened.stream_id, answer.image)

    def _stream(self) -> StreamState | None:
        image = self._image()
        opened = list(image.streams.open_on(self.broker_id)) if image is not None else []
        return opened[self._rand.below(len(opened))] if opened else None

    async def _commit(self) -> None:
        stream = self._stream()
        if stream is None or not self._objects:
            return
        object_id = self._objects.pop(0)
        end = stream.end + 1 + self._rand.below(50)
        ranges = [UploadedRange(stream.stream_id, stream.end, end)]
        answer = await self._ask(CommitUploadRequest(self.broker_id, self._epoch, object_id, 1000, ranges))
        if answer is not None:
            self._history.on_end(stream.stream_id, end, answer.image)

    async def _trim(self) -> None:
        stream = self._stream()
        if stream is None or stream.start == stream.end:
            return
        start = stream.start + 1 + self._rand.below(stream.end - stream.start)
        trim = StreamTrim(stream.stream_id, stream.epoch, start)
        answer = await self._ask(TrimStreamsRequest(self.broker_id, self._epoch, [trim]))
        if answer is not None and not answer.response.streams[0].error_code:
            self._history.on_start(stream.stream_id, start, answer.image)

    async def _close(self) -> None:
        stream = self._stream()
        if stream is not None:
            close = StreamClose(stream.stream_id, stream.epoch)
            await self._ask(CloseStreamsRequest(self.broker_id, self._epoch, [close]))

    async def _remove(self) -> None:
        image = self._image()
        if image is not None:
            ids = image.objects.pending_deletions_before(FAR, 10)
            await self._ask(RemoveObjectsRequest(self.broker_id, self._epoch, list(ids)))


class Burst(Broker):
    """Asks for many things at once, so that some of a group may be committed with a leader and some not."""

    async def _do_something(self) -> None:
        if self._epoch < 0:
            await self._register()
            return
        ways = [self._prepare, self._allocate]
        asked = [ways[self._rand.below(2)]() for _ in range(AT_ONCE)]
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if outcome is not None and not isinstance(outcome, Refused | Unknown):
                raise outcome
