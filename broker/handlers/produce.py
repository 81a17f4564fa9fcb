"""Produce (key 0): batches for partitions, acknowledged when they are durable.

Versions 3 to 13. No field is ignored.

What runs before `handle` returns runs in the order of the connection: partitions are found, room for the
whole request is made sure of, each batch is handed to its partition. A request whose partitions are not all
open, or for which there is no room, is queued at its partitions (runtime/scheduling/keyed_queue.py) and goes
through the same steps when it is first there; what arrives later for one of them stands behind it. So does a
request with a batch whose producer's state is in the log, which is read first, and one with a batch that
takes long to rewrite: when it is first, and there is room, its batches are rewritten off the loop, then
appended. What waits so is queued partition by partition (`_handle_apart`). At most REWRITES_AT_ONCE requests
are between the two, shared between connections, and of several no more than Unpacking.held_bytes_max, as what
their frames grow to is charged to nobody. A request for more partitions than may be served in one iteration
of the loop is served in pieces (wide_produce.py), and its connection begins nothing behind it.

acks=1 is as durable as acks=-1. acks=0 is not answered, and closes the connection when anything was refused,
so that the client asks for metadata. An append has no timeout: the WAL confirms it or the process ends;
`timeout_ms` bounds the waiting before it, and that for partitions to open is bounded by `opening_due_s`
(partitions/directory.py): one that does not open for long keeps nobody's batches for others from their
answers.

Transactions are not served yet: a request that has a transactional id, or batch, is refused whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from millrace.broker.errors import code_of
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.partitions.directory import LedTopic, PartitionDirectory
from millrace.broker.partitions.meta_stream import Room
from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.producers import StatesFull
from millrace.broker.partitions.rewrite import InvalidRecords, is_slow
from millrace.broker.partitions.unpacking import Unpacking
from millrace.broker.partitions.validation import LOOKED_INLINE_BYTES_MAX, Looked, RecordLook, TooLong
from millrace.broker.requests.request import CLOSE, NO_REPLY, RequestContext
from millrace.broker.requests.sequence_gaps import RETRIABLE_CODES, SequenceGaps, Topic
from millrace.broker.requests.wide_produce import Joined, apart, is_wide, pieces
from millrace.protocol.batches import CODEC_MASK, has_unset_max_timestamp
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from millrace.protocol.record_walk import IS_COMPILED
from millrace.runtime.clock import Clock
from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Exhausted, MillraceError
from millrace.runtime.scheduling.keyed_queue import KeyedQueue, Ticket
from millrace.runtime.scheduling.semaphore import Semaphore
from millrace.runtime.scheduling.yield_queue import YieldQueue

log = logging.getLogger(__name__)

VERSION_WITH_STORAGE_ERROR = 4
VERSION_BY_ID = 13
VERSION_WITH_HINTS = 10
ADMIN_CLIENT_ID = "__admin_client"
TIMEOUT_MS_MIN = 1000
# What an entry costs in WAL and cache beside its bytes, erring upwards.
ENTRY_OVERHEAD_BYTES = 640
REWRITES_AT_ONCE = 8
CHUNK_BYTES = 64 << 10  # of batches that are small each: what is done with them in one iteration of the loop
MAGIC_AT, ATTRIBUTES_AT, PRODUCER_ID_AT = 16, 22, 43
TRANSACTIONAL_BIT = 0x10
NO_RECORDS = memoryview(b"")


class _Part:
    """One partition's batch within a request. `on_done` is what the engine calls when it is durable.
    `is_recoded`: see Partition.append. `is_found`: its producer's state was looked for in the log."""

    __slots__ = ("index", "is_found", "is_recoded", "led", "looked", "partition", "records", "reply", "work")

    def __init__(
        self, work: _Work, led: LedTopic, index: int, records: memoryview, reply: PartitionProduceResponse
    ) -> None:
        self.work = work
        self.led = led
        self.index = index
        self.records = records
        self.reply = reply
        self.is_recoded = False
        self.is_found = False
        self.looked: Looked | None = None  # what a look at its records told, in this iteration of the loop
        self.partition: Partition | None = None

    def on_done(self, append: object) -> None:
        if self.partition is not None and self.partition.is_fenced:
            self._note_loss(self.partition)
            _refuse(self.reply, ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
        work = self.work
        work.missing_count -= 1
        if work.missing_count == 0:
            work.finish()

    def _note_loss(self, partition: Partition) -> None:
        """The batch went with the log it was in; a log of that name that begins anew does not know of it."""
        written = partition.state.producers.writer_of(self.reply.base_offset)
        if written is not None:
            _gaps_of(self.work.context).note_batch(_topic_of(self), self.index, *written, _tick_ms())


class _Work:
    """One request under way. `missing_count`: parts that are not settled yet. `needed_bytes`: room for all
    that may be appended. `is_long`: it waits for more than room. `is_slow`: it has batches that take long to
    rewrite. `is_cold`: the state of a producer of it is in the log."""

    __slots__ = (
        "context",
        "future",
        "is_cold",
        "is_long",
        "is_over",
        "is_slow",
        "is_transactional",
        "looked_before_bytes",
        "looked_bytes",
        "missing_count",
        "needed_bytes",
        "openings",
        "parts",
        "permit_bytes",
        "request",
        "response",
        "rewrite",
        "ticket",
        "timer",
    )

    def __init__(self, context: RequestContext, request: ProduceRequest) -> None:
        self.context = context
        self.request = request
        self.response = ProduceResponse()
        self.parts: list[_Part] = []
        self.openings: dict[asyncio.Future[Partition], float] = {}  # until when it waits for each
        self.missing_count = 0
        self.needed_bytes = 0
        self.is_transactional = False
        self.is_over = False
        self.is_slow = False
        self.is_cold = False
        self.is_long = False
        self.looked_before_bytes = 0  # of pieces of the same request that came before
        self.looked_bytes = 0  # of records that were looked at, or will be, in this iteration of the loop
        self.permit_bytes = -1  # taken among those that are rewritten; none yet
        self.future: asyncio.Future[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.rewrite: asyncio.Task[None] | None = None
        self.ticket: Ticket | None = None

    def waits_for_more(self) -> bool:
        """Than room, as it is found."""
        return bool(self.openings) or self.is_slow or self.is_cold

    def drop_views(self) -> None:
        """Drops the request's views of its frame; parts that wait have copies."""
        if self.ticket is None:
            self.parts = []  # they know the work: a cycle would keep them until the collector comes by
        for topic in self.request.topic_data:
            for asked in topic.partition_data:
                asked.records = None

    def finish(self) -> None:
        """Every part is settled, in a later iteration of the loop than the request's own."""
        if self.future is not None and not self.future.done():
            self.future.set_result(self.outcome())

    def outcome(self) -> Any:
        if self.request.acks != 0:
            return self.response
        is_refused = any(
            part.error_code for topic in self.response.responses for part in topic.partition_responses
        )
        return CLOSE if is_refused else NO_REPLY


class Produce:
    def __init__(
        self,
        directory: PartitionDirectory,
        cache: MetadataCache,
        room: Room,
        clock: Clock,
        unpacking: Unpacking,
        yield_queue: YieldQueue,
    ) -> None:
        self._directory = directory
        self._cache = cache
        self._room = room
        self._clock = clock
        self._unpacking = unpacking
        self._rewrites = Semaphore(REWRITES_AT_ONCE, bytes_max=unpacking.held_bytes_max)
        self._yield_queue = yield_queue
        self._look = RecordLook()
        self._long_count = 0  # of the requests that are queued, those that wait for more than room
        self._queue = KeyedQueue(lambda call: asyncio.get_running_loop().call_soon(call))

    def handle(self, context: RequestContext, request: ProduceRequest) -> Any:
        """On return no view of the frame is left, but where it is wide: the memory of others is received into
        again."""
        context.connection.is_producing = True
        if is_wide(request):
            return self._handle_wide(context, request)
        return self._begin(_Work(context, request))

    async def _handle_wide(self, context: RequestContext, request: ProduceRequest) -> Any:
        """Others have the loop between its pieces. Cancelled, what was begun goes on, and the rest is not
        begun."""
        yield_now = self._yield_queue.yield_now
        transactional_id = request.transactional_id
        if transactional_id is None:
            for piece in pieces(request, None):
                if any(
                    _is_transactional(asked.records)
                    for topic in piece.topic_data
                    for asked in topic.partition_data
                ):
                    transactional_id = ""
                await yield_now()
        outcomes = []
        for piece in pieces(request, transactional_id):
            outcomes.append(self._begin(_Work(context, piece)))
            await yield_now()
        return await self._join(request, outcomes)

    def _handle_apart(self, context: RequestContext, request: ProduceRequest) -> asyncio.Future[Any]:
        """Each partition's batch as a request of its own: none of them keeps those at its partition waiting
        for what another one waits for."""
        outcomes, looked_bytes = [], 0
        for piece in apart(request):
            work = _Work(context, piece)
            work.looked_before_bytes = work.looked_bytes = looked_bytes
            outcomes.append(self._begin(work))
            looked_bytes = work.looked_bytes
        return asyncio.get_running_loop().create_task(self._join(request, outcomes))

    async def _join(self, request: ProduceRequest, outcomes: Iterable[Any]) -> Any:
        """Of a request's pieces, in their order."""
        yield_now = self._yield_queue.yield_now
        joined, is_closed = Joined(request.topic_data), False
        for outcome in outcomes:
            response = await outcome if asyncio.isfuture(outcome) else outcome
            is_closed = is_closed or response is CLOSE
            if isinstance(response, ProduceResponse):
                joined.add(response)
                await yield_now()
        if is_closed:
            return CLOSE
        return joined.response if request.acks else NO_REPLY

    def _begin(self, work: _Work) -> Any:
        context, request = work.context, work.request
        try:
            if request.acks not in (-1, 0, 1):
                return self.refuse(request, ErrorCode.INVALID_REQUIRED_ACKS)
            self._gather(work)
            if work.is_transactional or request.transactional_id is not None:
                refusal = self.refuse(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
                return refusal if request.acks else CLOSE
            if (
                work.openings
                or work.is_slow
                or work.is_cold
                or not self._room.has_room(work.needed_bytes)
                or (self._queue and self._is_behind(work))
            ):
                if len(work.parts) > 1 and (work.waits_for_more() or self._long_count):
                    return self._handle_apart(context, request)
                return self._enqueue(work)
            self._append(work)
            if work.missing_count == 0 or request.acks == 0:
                return work.outcome()
            work.future = asyncio.get_running_loop().create_future()
            return work.future
        finally:
            work.drop_views()

    def refuse(self, request: ProduceRequest, code: int) -> ProduceResponse:
        """Every partition has the same error."""
        topics = []
        for topic in request.topic_data:
            parts = [PartitionProduceResponse(asked.index, int(code), -1) for asked in topic.partition_data]
            topics.append(TopicProduceResponse(topic.name, topic.topic_id, parts))
        return ProduceResponse(topics)

    # -- finding

    def _gather(self, work: _Work) -> None:
        """Fills in what is refused at once, and makes a part of everything else."""
        directory, by_id = self._directory, work.context.api_version >= VERSION_BY_ID
        for topic in work.request.topic_data:
            led = directory.topic_of(topic.topic_id) if by_id else directory.topic_named(topic.name)
            replies: list[PartitionProduceResponse] = []
            work.response.responses.append(TopicProduceResponse(topic.name, topic.topic_id, replies))
            code = 0
            if led is None:
                code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif led.is_internal and work.context.client_id != ADMIN_CLIENT_ID:
                code = ErrorCode.INVALID_TOPIC_EXCEPTION
            for asked in topic.partition_data:
                index = asked.index
                reply = PartitionProduceResponse(index)
                replies.append(reply)
                records = NO_RECORDS if asked.records is None else memoryview(asked.records)
                if _is_transactional(records):
                    work.is_transactional = True
                if led is None or code:
                    _refuse(reply, code, "")
                    _note_gap(work.context, topic.topic_id if by_id else topic.name, index, records, code)
                    continue
                part = _Part(work, led, index, records, reply)
                part.partition = led.partitions.get(index)
                if part.partition is None:
                    if not self._find(part):
                        continue
                elif part.partition.state.producers.cold is not None:
                    work.is_cold = work.is_cold or part.partition.state.producers.is_cold(
                        _producer_of(records)
                    )
                work.parts.append(part)
                settings = led.settings
                size_bytes = len(records)
                if (
                    settings.record_rules is not None
                    or settings.is_rewriting
                    or has_unset_max_timestamp(records)
                ):
                    work.is_slow = work.is_slow or self._is_slow(part)
                    if settings.codec is not None:
                        size_bytes = max(size_bytes, settings.rules.batch_bytes_max)
                work.needed_bytes += size_bytes + ENTRY_OVERHEAD_BYTES

    def _find(self, part: _Part) -> bool:
        """Looks for a partition that is not open; False when it is refused."""
        try:
            found = self._directory.get(part.led.topic_id, part.index, part.work.context.connection.owner)
        except KafkaError as error:
            error.__traceback__ = None  # it may be kept, and would keep what the callers' frames hold
            self._refuse_part(part, error.code, error.message)
            return False
        if isinstance(found, Partition):
            part.partition = found
        else:
            due_s = self._directory.opening_due_s(part.led.topic_id, part.index, found)
            if due_s <= asyncio.get_running_loop().time():
                self._refuse_part(part, ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
                return False
            part.work.openings[found] = due_s
        return True

    # -- appending

    def _append(self, work: _Work) -> None:
        """No await from here to the last batch: offsets are given in the order of the wire."""
        now_ms = self._clock.wall_ms()
        tick_ms = _tick_ms()
        version, connection = work.context.api_version, work.context.connection
        gaps, who = connection.gaps, connection.peer_host
        total = self._directory.traffic
        for part in work.parts:
            partition, reply = part.partition, part.reply
            assert partition is not None
            records, end = part.records, partition.log_end_offset
            try:
                if gaps:
                    gaps.check(_topic_of(part), part.index, records, partition.state.producers, tick_ms)
                appended = partition.append(
                    records, version, now_ms, tick_ms, part.on_done, part.is_recoded, who, part.looked
                )
            except KafkaError as error:
                self._refuse_batch(part, error)
            except MillraceError as error:  # raised before an offset was given
                self._refuse_part(part, code_of(error) or ErrorCode.UNKNOWN_SERVER_ERROR, "")
            else:
                reply.base_offset, reply.log_append_time_ms, is_durable = appended
                reply.log_start_offset = partition.log_start_offset
                count = partition.log_end_offset - end  # none: a duplicate
                if count:
                    traffic, size_bytes = part.led.traffic, len(records)
                    traffic.in_bytes += size_bytes
                    partition.in_bytes += size_bytes
                    traffic.in_records += count
                    total.in_bytes += size_bytes
                    total.in_records += count
                if not is_durable:
                    work.missing_count += 1
            part.records = NO_RECORDS
        work.parts = []

    def _refuse_batch(self, part: _Part, error: KafkaError) -> None:
        self._refuse_part(part, error.code, error.message)
        if isinstance(error, StatesFull):
            part.work.response.throttle_time_ms = error.throttle_ms
        if isinstance(error, InvalidRecords):
            part.reply.record_errors = [
                BatchIndexAndErrorMessage(index, message) for index, message in error.errors
            ]

    def _refuse_part(self, part: _Part, code: int, message: str) -> None:
        version = part.work.context.api_version
        if code == ErrorCode.UNKNOWN_TOPIC_ID and version < VERSION_BY_ID:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif code == ErrorCode.KAFKA_STORAGE_ERROR and version < VERSION_WITH_STORAGE_ERROR:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        _refuse(part.reply, code, message)
        _note_gap(part.work.context, _topic_of(part), part.index, part.records, code)
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= VERSION_WITH_HINTS:
            self._hint(part)

    def _hint(self, part: _Part) -> None:
        """Who leads it, as far as is known here (KIP-951)."""
        found = self._cache.leader(part.led.topic_id, part.index)
        if found is None:
            return
        leader, epoch = found
        part.reply.current_leader = LeaderIdAndEpoch(leader, epoch)
        endpoints = part.work.response.node_endpoints
        if all(endpoint.node_id != leader for endpoint in endpoints):
            node = self._cache.node(leader, part.work.context.connection)
            if node is not None:
                endpoints.append(NodeEndpoint(node.node_id, node.host, node.port, node.rack))

    # -- waiting for partitions, room and what takes long

    def _is_behind(self, work: _Work) -> bool:
        is_queued = self._queue.is_queued
        return any(is_queued(_key_of(part)) or is_queued(_producer_key_of(part)) for part in work.parts)

    def _keys_of(self, work: _Work) -> Iterator[tuple[object, ...]]:
        """Where it takes its place: at its partitions. One that waits for its producers' states alone keeps
        only these producers' own batches behind it: a read of the log holds up nobody else's."""
        is_alone = work.is_cold and not (work.openings or work.is_slow or self._is_behind(work))
        return ((_producer_key_of if is_alone else _key_of)(part) for part in work.parts)

    def _enqueue(self, work: _Work) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        for part in work.parts:
            part.records, part.looked = memoryview(bytes(part.records)), None
        work.future = loop.create_future()
        due_s = loop.time() + max(work.request.timeout_ms, TIMEOUT_MS_MIN) / 1000
        work.timer = loop.call_at(min((due_s, *work.openings.values())), self._on_time, work, due_s)
        work.is_long = work.waits_for_more()
        self._long_count += work.is_long
        keys = self._keys_of(work)
        openings = list(work.openings)
        # One hold more than there are openings, released once the ticket is known to the work.
        work.ticket = self._queue.enqueue(keys, len(openings) + 1, lambda: self._admit(work))
        for opening in openings:
            opening.add_done_callback(lambda _: self._release(work))
        self._release(work)
        return work.future

    def _release(self, work: _Work) -> None:
        assert work.ticket is not None
        self._queue.release(work.ticket)

    def _admit(self, work: _Work) -> None:
        """First at all its partitions, and each is open or refused."""
        finding = [] if work.is_over else self._find_producers(work)
        if finding:
            found = asyncio.gather(*finding, return_exceptions=True)
            found.add_done_callback(lambda _: self._admit(work))
            return
        if work.is_over or self._room.has_room(work.needed_bytes):
            self._run(work)
            return
        self._room.wait_for_room(work.needed_bytes).add_done_callback(lambda room: self._on_room(work, room))

    @staticmethod
    def _find_producers(work: _Work) -> list[asyncio.Future[None]]:
        """Producers whose state is in the log: each is looked for once, and judged by what was found."""
        finding = []
        for part in work.parts:
            partition = part.partition or part.led.partitions.get(part.index)
            if partition is None or part.is_found or partition.state.producers.cold is None:
                continue
            part.is_found = True
            found = partition.find_producer(_producer_of(part.records), work.context.connection.peer_host)
            if found is not None:
                finding.append(found)
        return finding

    def _on_room(self, work: _Work, room: asyncio.Future[None]) -> None:
        error = None if room.cancelled() else room.exception()
        if error is None:
            self._run(work)
            return
        # Exhausted: the whole of it could never fit. A producer that is told so cuts its batches.
        code = (
            ErrorCode.MESSAGE_TOO_LARGE if isinstance(error, Exhausted) else ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
        self._give_up(work, work.parts, code)
        self._complete(work)

    def _run(self, work: _Work) -> None:
        """There is room for it."""
        if not work.is_over:
            try:
                work.parts = [part for part in work.parts if self._is_still_led(part)]
                work.looked_bytes = work.looked_before_bytes
                slow = [part for part in work.parts if self._is_slow(part)]
                if slow:
                    self._begin_rewrite(work, slow)
                    return
                self._append(work)
            except Exception:  # a defect of ours ends one request, not the line behind it
                log.exception("a produce request that had waited fails")
                for part in work.parts:
                    if part.records is not NO_RECORDS:
                        self._refuse_part(part, ErrorCode.UNKNOWN_SERVER_ERROR, "")
                work.parts = []
            work.is_over = True
            if work.missing_count == 0 or work.request.acks == 0:
                work.finish()
        self._complete(work)

    def _is_slow(self, part: _Part) -> bool:
        """Whether what is to be done with a batch takes too long for one iteration of the loop, or all that
        is to be done with its request does."""
        settings, records, work = part.led.settings, part.records, part.work
        if part.is_recoded:
            return False
        if settings.record_rules is None:
            return is_slow(records, settings)
        work.looked_bytes += len(records)
        if len(records) > ATTRIBUTES_AT and (
            records[ATTRIBUTES_AT] & CODEC_MASK or settings.codec or not IS_COMPILED
        ):
            looked = self._look(records, settings, self._clock.wall_ms())
            if isinstance(looked, TooLong):
                return True
            work.looked_bytes += self._look.unpacked_bytes
            part.looked = looked
        return work.looked_bytes > LOOKED_INLINE_BYTES_MAX

    def _begin_rewrite(self, work: _Work, parts: list[_Part]) -> None:
        """Cancelled when the request's time is up, maybe before its first step."""
        work.rewrite = asyncio.get_running_loop().create_task(self._rewrite(work, parts), name="rewrite")
        work.rewrite.add_done_callback(lambda rewrite: self._on_rewritten(work, rewrite))

    async def _rewrite(self, work: _Work, parts: list[_Part]) -> None:
        try:
            if work.permit_bytes < 0:
                needed_bytes = work.needed_bytes
                who = work.context.connection
                await self._rewrites.acquire(who.owner, needed_bytes)
                work.permit_bytes = needed_bytes
            done_bytes = 0
            for part in parts:
                await self._rewrite_part(work, part)
                done_bytes += len(part.records)
                if done_bytes > CHUNK_BYTES:
                    done_bytes = 0
                    await self._yield_queue.yield_now()
        except Exception:
            log.exception("%s: a batch could not be rewritten", parts[0].led.name)
            self._give_up(work, work.parts, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _on_rewritten(self, work: _Work, rewrite: asyncio.Task[None]) -> None:
        """Room is made sure of once more, and the whole is appended; or it leaves the queue."""
        work.rewrite = None
        if work.is_over or not rewrite.cancelled():  # else the process ends
            self._admit(work)

    async def _rewrite_part(self, work: _Work, part: _Part) -> None:
        now_ms, version = self._clock.wall_ms(), work.context.api_version
        try:
            part.records = await self._unpacking.recode(part.records, part.led.settings, now_ms, version)
            part.is_recoded = True
        except KafkaError as error:
            self._refuse_batch(part, error)
            work.parts.remove(part)

    def _is_still_led(self, part: _Part) -> bool:
        """The metadata may have changed while the request waited."""
        try:
            found = self._directory.get(part.led.topic_id, part.index)
        except KafkaError as error:
            self._refuse_part(part, error.code, error.message)
            return False
        if not isinstance(found, Partition):
            self._refuse_part(part, ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
            return False
        part.partition = found
        return True

    def _on_time(self, work: _Work, due_s: float) -> None:
        """It is due, or a partition that opens is: what stands behind it on the connection does not wait
        until the client gives all of it up."""
        if asyncio.get_running_loop().time() >= due_s:
            self._expire(work)
        elif all(opening.done() for opening in work.openings):
            work.timer = asyncio.get_running_loop().call_at(due_s, self._expire, work)
        else:
            self._give_up(work, work.parts, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _expire(self, work: _Work) -> None:
        """Nothing was appended: the client may send it again. It leaves the queue when it is first."""
        self._give_up(work, work.parts, ErrorCode.REQUEST_TIMED_OUT)
        if work.rewrite is not None:
            work.rewrite.cancel()

    def _give_up(self, work: _Work, parts: Iterable[_Part], code: int) -> None:
        if not work.is_over:
            work.is_over = True
            for part in parts:
                self._refuse_part(part, code, "")
            work.parts = []
            if work.rewrite is None:
                self._end_rewrite(work)
            work.finish()

    def _end_rewrite(self, work: _Work) -> None:
        if work.permit_bytes >= 0:
            who = work.context.connection
            self._rewrites.release(who.owner, work.permit_bytes)
            work.permit_bytes = -1

    def _complete(self, work: _Work) -> None:
        self._end_rewrite(work)
        if work.timer is not None:
            work.timer.cancel()
        assert work.ticket is not None
        self._long_count -= work.is_long
        self._queue.complete(work.ticket)


def _refuse(reply: PartitionProduceResponse, code: int, message: str) -> None:
    reply.error_code = int(code)
    reply.base_offset = -1
    reply.log_append_time_ms = -1
    reply.log_start_offset = -1
    reply.error_message = message or None


def _is_transactional(records: Buffer | None) -> bool:
    if records is None or len(records) <= ATTRIBUTES_AT:
        return False
    return records[MAGIC_AT] == 2 and bool(records[ATTRIBUTES_AT] & TRANSACTIONAL_BIT)


def _producer_of(records: memoryview) -> int:
    """The producer id that a batch names, -1 for none."""
    named = records[PRODUCER_ID_AT : PRODUCER_ID_AT + 8]
    return int.from_bytes(named, "big", signed=True) if len(named) == 8 else -1


def _key_of(part: _Part) -> tuple[object, ...]:
    return part.led.topic_id, part.index


def _producer_key_of(part: _Part) -> tuple[object, ...]:
    return part.led.topic_id, part.index, _producer_of(part.records)


def _topic_of(part: _Part) -> Topic:
    """As requests of that version name it."""
    return part.led.topic_id if part.work.context.api_version >= VERSION_BY_ID else part.led.name


def _note_gap(context: RequestContext, topic: Topic, index: int, records: memoryview, code: int) -> None:
    if code in RETRIABLE_CODES and len(records):
        _gaps_of(context).note(topic, index, records, _tick_ms())


def _gaps_of(context: RequestContext) -> SequenceGaps:
    connection = context.connection
    if connection.gaps is None:
        connection.gaps = SequenceGaps()
    return connection.gaps


def _tick_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
