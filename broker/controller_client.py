"""The broker's voice to the controller: implements what the stream engine and the partitions ask of the
metadata.

Every verb is sent until it is answered: Unavailable and a disk of the quorum that is full are waited out with
backoff, and every verb may be sent twice. Refusals become StreamFenced, StreamMissing, UploadExpired or
CompactionRefused. Not here: what the verbs mean (kraft/tables).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.stream_closes import StreamCloses
from millrace.kraft.channel import ControllerChannel
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.brokers import UNASSIGNED_DIRECTORY
from millrace.protocol.declare import NO_UUID
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from millrace.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from millrace.protocol.messages.claim_node import ClaimNodeRequest, ClaimNodeResponse
from millrace.protocol.messages.close_streams import (
    ClosedStream,
    CloseStreamsRequest,
    CloseStreamsResponse,
    StreamClose,
)
from millrace.protocol.messages.commit_upload import (
    CommitUploadRequest,
    CommitUploadResponse,
    UploadedRange,
    UploadedStreamObject,
)
from millrace.protocol.messages.get_opening_streams import GetOpeningStreamsRequest, GetOpeningStreamsResponse
from millrace.protocol.messages.open_partition_streams import (
    OpenPartitionStreamsRequest,
    OpenPartitionStreamsResponse,
)
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest, PrepareObjectsResponse
from millrace.protocol.messages.remove_objects import RemoveObjectsRequest, RemoveObjectsResponse
from millrace.protocol.messages.seal_streams import (
    SealedStream,
    SealStreamsRequest,
    SealStreamsResponse,
    StreamSeal,
)
from millrace.protocol.messages.trim_streams import StreamTrim, TrimStreamsRequest, TrimStreamsResponse
from millrace.runtime.errors import Exhausted, Unavailable, in_words
from millrace.s3stream.errors import CompactionRefused, StreamFenced, StreamMissing, UploadExpired
from millrace.s3stream.ids import (
    CompactionCommit,
    ObjectHint,
    ObjectId,
    OpenedStream,
    StreamBounds,
    StreamId,
    StreamObjectInfo,
    StreamRole,
    StreamSetInfo,
    UploadCommit,
    token_of,
)

if TYPE_CHECKING:
    from millrace.protocol.messages.accept_wal_loss import LostPartition

log = logging.getLogger(__name__)
RETRY_FIRST_S, RETRY_MAX_S = 0.05, 5.0
NODE_FENCED = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED)
# A refusal that passes: the metadata log's disk is full, or a former owner has not closed its streams yet.
RETRIED_CODES = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_CONTROLLER)
# A stream is not sealed, and is to be closed once all of it is committed.
NOT_SEALED = (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_RECORD_STATE)


class ControllerClient:
    """`broker_epoch` is given by `register`, before anything else is asked."""

    def __init__(self, channel: ControllerChannel, cache: MetadataCache, node_id: int) -> None:
        self._channel = channel
        self._cache = cache
        self._node_id = node_id
        self._incarnation = NO_UUID
        self._closes = StreamCloses(self._close_all)
        self._full: dict[int, str] = {}  # of the commands that wait for room in the metadata log, why
        self._seals = StreamCloses(self._seal_all)
        self.broker_epoch = -1

    @property
    def full_reason(self) -> str:
        """What a command that waits for room in the metadata log was told, "" when none does."""
        return next(iter(self._full.values()), "")

    async def register(
        self,
        incarnation: bytes,
        listeners: Sequence[tuple[str, str, int]],
        features: Sequence[tuple[str, int, int]],
        rack: str | None = None,
        *,
        is_named: bool = False,
    ) -> int:
        """Gives this start of the process its epoch; earlier ones of the node are fenced from then on.
        `is_named`: as `sign_as`. Raises KafkaError DUPLICATE_BROKER_REGISTRATION while another broker
        recovers this one's write-ahead log."""
        request = BrokerRegistrationRequest(
            broker_id=self._node_id,
            cluster_id=self._cache.cluster_id,
            incarnation_id=incarnation,
            listeners=[Listener(name, host, port, 0) for name, host, port in listeners],
            features=[Feature(*feature) for feature in features],
            rack=rack,
        )
        response: BrokerRegistrationResponse = await self._ask(request)
        _raise_refusal(response.error_code, "the broker's registration")
        self.broker_epoch = response.broker_epoch
        self.sign_as(incarnation if is_named else NO_UUID)
        return self.broker_epoch

    def sign_as(self, incarnation: bytes) -> None:
        """Objects are prepared and committed in the incarnation's name, as from millrace.version 1 on."""
        self._incarnation = incarnation

    async def register_wal(
        self, wal_id: bytes, kind: str, address: str, position: int, *, is_loss_accepted: bool
    ) -> None:
        """On return metadata durably has this log as the node's active one. Raises KafkaError where another
        log holds open streams."""
        from millrace.protocol.messages.register_node_wal import (
            RegisterNodeWalRequest,
            RegisterNodeWalResponse,
        )

        identity = self._node_id, self.broker_epoch, wal_id, kind, address
        response: RegisterNodeWalResponse = await self._ask(
            RegisterNodeWalRequest(*identity, position, is_loss_accepted)
        )
        self._check_node(response.error_code)
        _raise_refusal(response.error_code, response.error_message or "the WAL's registration")

    async def accept_wal_loss(self) -> Sequence[LostPartition]:
        """Raises the leader epochs of the partitions that this node had open; gives what was in its log
        alone."""
        from millrace.protocol.messages.accept_wal_loss import AcceptWalLossRequest, AcceptWalLossResponse

        response: AcceptWalLossResponse = await self._ask(
            AcceptWalLossRequest(self._node_id, self.broker_epoch)
        )
        self._check_node(response.error_code)
        _raise_refusal(response.error_code, response.error_message or "the acceptance of a loss")
        return response.partitions

    async def claim_node(
        self, series: int, number: int, incarnation: bytes, found_number: int, found_incarnation: bytes
    ) -> None:
        """Before the registration. On return the metadata log has durably what the incarnation is about to
        claim."""
        request = ClaimNodeRequest(series, number, incarnation, found_number, found_incarnation)
        response: ClaimNodeResponse = await self._ask(request)
        _raise_refusal(response.error_code, response.error_message or "the claim of a node")

    async def open_partition(
        self, topic_id: bytes, index: int, leader_epoch: int, roles: Sequence[StreamRole]
    ) -> dict[StreamRole, OpenedStream]:
        """Makes the streams that are missing and opens all, at the leader's epoch. Raises StreamFenced where
        this node's broker epoch is stale, KafkaError for any other refusal."""
        request = OpenPartitionStreamsRequest(
            node_id=self._node_id,
            broker_epoch=self.broker_epoch,
            topic_id=topic_id,
            partition_index=index,
            leader_epoch=leader_epoch,
            roles=[int(role) for role in roles],
        )
        response: OpenPartitionStreamsResponse = await self._ask(request)
        if response.error_code in NODE_FENCED:
            raise StreamFenced(-1, leader_epoch)
        _raise_refusal(response.error_code, response.error_message or "the partition's streams")
        return {
            StreamRole(found.role): OpenedStream(
                StreamId(found.stream_id), found.epoch, found.start_offset, found.end_offset
            )
            for found in response.streams
        }

    # StreamCatalog

    async def opening_streams(self) -> list[OpenedStream]:
        request = GetOpeningStreamsRequest(self._node_id, self.broker_epoch)
        response: GetOpeningStreamsResponse = await self._ask(request)
        self._check_node(response.error_code)
        opened = [
            OpenedStream(StreamId(found.stream_id), found.epoch, found.start_offset, found.end_offset)
            for found in response.streams
        ]
        for owed in response.owed:
            bounds = owed.start_offset, owed.start_offset, owed.end_offset
            opened.append(OpenedStream(StreamId(owed.stream_id), owed.epoch, *bounds))
        return opened

    async def trim(self, stream_id: StreamId, epoch: int, new_start: int) -> None:
        request = TrimStreamsRequest(
            self._node_id, self.broker_epoch, [StreamTrim(stream_id, epoch, new_start)]
        )
        response: TrimStreamsResponse = await self._ask(request)
        self._check_node(response.error_code)
        _check_stream(response.streams[0].error_code, stream_id, epoch)

    async def close(self, stream_id: StreamId, epoch: int) -> None:
        _check_stream(await self._closes.close(stream_id, epoch), stream_id, epoch)

    async def _close_all(self, streams: Sequence[tuple[int, ...]]) -> Sequence[ClosedStream]:
        request = CloseStreamsRequest(
            self._node_id, self.broker_epoch, [StreamClose(*one) for one in streams]
        )
        response: CloseStreamsResponse = await self._ask(request)
        self._check_node(response.error_code)
        return response.streams

    async def seal(self, stream_id: StreamId, epoch: int, start: int, end: int) -> bool:
        """False also where the controllers do not know owed ranges, or not yet (millrace.version below 3)."""
        code = await self._seals.close(stream_id, epoch, start, end)
        if code in NOT_SEALED:
            return False
        _check_stream(code, stream_id, epoch)
        return True

    async def _seal_all(self, streams: Sequence[tuple[int, ...]]) -> Sequence[SealedStream]:
        request = SealStreamsRequest(self._node_id, self.broker_epoch, [StreamSeal(*one) for one in streams])
        response: SealStreamsResponse = await self._ask(request)
        self._check_node(response.error_code)
        if response.error_code:
            return [SealedStream(one.stream_id, response.error_code) for one in request.streams]
        return response.streams

    # ObjectCatalog

    async def prepare(self, count: int, ttl_ms: int) -> ObjectId:
        request = PrepareObjectsRequest(
            self._node_id, self.broker_epoch, count, ttl_ms, token_of(self._incarnation)
        )
        response: PrepareObjectsResponse = await self._ask(request)
        self._check_node(response.error_code)
        _raise_refusal(response.error_code, response.error_message or "object ids")
        return ObjectId(response.first_object_id)

    async def commit_upload(self, commit: UploadCommit) -> None:
        """Raises UploadExpired where an id is not prepared, StreamFenced where the node or a stream has a
        newer epoch, else KafkaError."""
        request = CommitUploadRequest(
            node_id=self._node_id,
            broker_epoch=self.broker_epoch,
            object_id=commit.object_id,
            size_bytes=commit.size_bytes,
            ranges=[UploadedRange(r.stream_id, r.start, r.end) for r in commit.ranges],
            stream_objects=[
                UploadedStreamObject(o.object_id, o.size_bytes, o.range.stream_id, o.range.start, o.range.end)
                for o in commit.stream_objects
            ],
            incarnation=self._incarnation,
            wal_id=commit.wal_id,
            wal_end=commit.wal_end,
        )
        response: CommitUploadResponse = await self._ask(request)
        self._check_node(response.error_code)
        if response.error_code == ErrorCode.FENCED_LEADER_EPOCH:
            raise StreamFenced(-1, self.broker_epoch)
        if response.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            raise UploadExpired(commit.object_id)
        _raise_refusal(response.error_code, response.error_message or "the commit of an upload")

    def candidates(self, stream_id: StreamId, offset: int, limit: int) -> Sequence[ObjectHint]:
        stream = self._image.streams.get(stream_id)
        return [] if stream is None else self._image.objects.candidates(stream, offset, limit)

    # CompactionCatalog

    async def commit_compaction(self, commit: CompactionCommit) -> None:
        """Raises CompactionRefused where metadata has moved on, StreamFenced where the broker epoch is stale,
        else KafkaError."""
        from millrace.protocol.messages.commit_compaction import (
            CommitCompactionRequest,
            CommitCompactionResponse,
            CompactedObject,
            CompactedRange,
        )

        request = CommitCompactionRequest(
            node_id=self._node_id,
            broker_epoch=self.broker_epoch,
            object_id=commit.object_id,
            size_bytes=commit.size_bytes,
            ranges=[CompactedRange(r.stream_id, r.start, r.end) for r in commit.ranges],
            stream_objects=[
                CompactedObject(
                    o.object_id, o.kind, o.size_bytes, o.range.stream_id, o.range.start, o.range.end
                )
                for o in commit.stream_objects
            ],
            compacted_ids=list(commit.compacted_ids),
            superseded_ids=list(commit.superseded_ids),
            linked_ids=list(commit.linked_ids),
            dropped_link_ids=list(commit.dropped_link_ids),
            trimmed_ids=list(commit.trimmed_ids),
            incarnation=self._incarnation,
        )
        response: CommitCompactionResponse = await self._ask(request)
        self._check_node(response.error_code)
        if response.error_code == ErrorCode.INVALID_RECORD_STATE:
            raise CompactionRefused(response.error_message or "metadata has moved on")
        _raise_refusal(response.error_code, response.error_message or "the commit of a compaction")

    def stream_set_objects(self) -> Sequence[StreamSetInfo]:
        return self._image.objects.stream_sets(self._node_id)

    def stream_objects(self, stream_id: StreamId) -> Sequence[StreamObjectInfo]:
        stream = self._image.streams.get(stream_id)
        return [] if stream is None else self._image.objects.of_stream(stream)

    def open_streams(self) -> Sequence[StreamId]:
        return [stream.stream_id for stream in self._image.streams.open_on(self._node_id)]

    def stream_bounds(self, stream_ids: Sequence[StreamId]) -> Mapping[StreamId, StreamBounds]:
        streams = self._image.streams
        found = {stream_id: streams.get(stream_id) for stream_id in stream_ids}
        return {
            key: StreamBounds(stream.start, stream.end) for key, stream in found.items() if stream is not None
        }

    @property
    def _image(self) -> MetadataImage:
        return self._cache.image

    # sessions

    async def heartbeat(
        self,
        *,
        want_fence: bool = False,
        want_shut_down: bool = False,
        is_well: bool = True,
        is_cordoned: bool = False,
        is_repeated: bool = True,
    ) -> BrokerHeartbeatResponse:
        """Says that this broker is there, and ready to lead unless it starts (`want_fence`) or wants to end;
        whether it reaches the store; and whether its settings cordon its directory. Raises StreamFenced where
        a newer incarnation has registered; where it is not repeated until it is answered, Unavailable and
        Exhausted as well."""
        request = BrokerHeartbeatRequest(
            self._node_id,
            self.broker_epoch,
            self._image.offset,
            want_fence,
            want_shut_down,
            [] if is_well else [UNASSIGNED_DIRECTORY],  # its one directory, whose log takes nothing
            [UNASSIGNED_DIRECTORY] if is_cordoned else None,
        )
        response: BrokerHeartbeatResponse = await (
            self._ask(request) if is_repeated else self._channel.send(request)
        )
        if response.error_code in RETRIED_CODES:
            raise Unavailable(ErrorCode(response.error_code).name)
        self._check_node(response.error_code)
        _raise_refusal(response.error_code, "a heartbeat")
        return response

    # failovers

    async def begin_failover(self, node_id: int, incarnation: bytes) -> ControllerClient:
        """What speaks for a broker that is gone, from now on; it is refused itself. Raises StreamFenced where
        this broker was replaced, or is not to recover that one's log (any more)."""
        from millrace.protocol.messages.begin_failover import BeginFailoverRequest, BeginFailoverResponse

        request = BeginFailoverRequest(self._node_id, self.broker_epoch, node_id, incarnation)
        response: BeginFailoverResponse = await self._ask(request)
        self._check_node(response.error_code)
        if response.error_code == ErrorCode.INVALID_RECORD_STATE:
            raise StreamFenced(-1, self.broker_epoch)
        _raise_refusal(response.error_code, response.error_message or "the beginning of a failover")
        client = ControllerClient(self._channel, self._cache, node_id)
        client.broker_epoch, client._incarnation = response.node_epoch, incarnation
        return client

    async def end_failover(self, node_id: int, failure: str) -> None:
        """On return metadata has it that the log is recovered; or, with a failure, that this broker cannot.
        Raises KafkaError INVALID_RECORD_STATE where another does it."""
        from millrace.protocol.messages.end_failover import EndFailoverRequest, EndFailoverResponse

        request = EndFailoverRequest(self._node_id, self.broker_epoch, node_id, not failure, failure)
        response: EndFailoverResponse = await self._ask(request)
        self._check_node(response.error_code)
        _raise_refusal(response.error_code, response.error_message or "the end of a failover")

    # producer ids and deletions

    async def allocate_producer_ids(self) -> tuple[int, int]:
        """A block of producer ids: the first, and how many. Nobody else is given any of them."""
        request = AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=self.broker_epoch)
        response: AllocateProducerIdsResponse = await self._ask(request)
        self._check_node(response.error_code)
        _raise_refusal(response.error_code, "producer ids")
        return response.producer_id_start, response.producer_id_len

    async def remove_objects(self, object_ids: Sequence[ObjectId]) -> None:
        """Their files are gone: metadata forgets them."""
        request = RemoveObjectsRequest(self._node_id, self.broker_epoch, list(object_ids))
        response: RemoveObjectsResponse = await self._ask(request)
        self._check_node(response.error_code)
        _raise_refusal(response.error_code, response.error_message or "the removal of objects")

    def _check_node(self, error_code: int) -> None:
        if error_code in NODE_FENCED:
            raise StreamFenced(-1, self.broker_epoch)

    async def _ask(self, request: Any) -> Any:
        """Sends until the answer is not one that passes by itself."""
        delay_s, name = RETRY_FIRST_S, type(request).__name__
        try:
            while True:
                try:
                    response = await self._channel.send(request)
                    code = getattr(response, "error_code", 0)
                    if code not in RETRIED_CODES:
                        return response
                    message = getattr(response, "error_message", None) or ErrorCode(code).name
                    reason = message.removesuffix(".")
                    if code == ErrorCode.KAFKA_STORAGE_ERROR:
                        self._full[id(request)] = f"{name}: {reason}"
                except (Unavailable, Exhausted) as error:
                    reason = in_words(error)
                log.warning("%s: %s; again in %.2f s", name, reason, delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)
        finally:
            self._full.pop(id(request), None)


def _check_stream(error_code: int, stream_id: StreamId, epoch: int) -> None:
    if error_code == ErrorCode.RESOURCE_NOT_FOUND:
        raise StreamMissing(stream_id)
    if error_code == ErrorCode.FENCED_LEADER_EPOCH:
        raise StreamFenced(stream_id, epoch)
    _raise_refusal(error_code, f"stream {stream_id}")


def _raise_refusal(error_code: int, what: str) -> None:
    if error_code:
        raise KafkaError(error_code, what)
