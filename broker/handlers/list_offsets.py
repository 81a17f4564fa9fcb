"""ListOffsets (key 2): where a partition begins and ends, and which record belongs to a time.

Versions 1 to 11. Ignored: `replica_id`.

What needs no reading of partitions that are open is answered at once. Those that are not are waited for
together; the rest is looked up side by side, a few at a time, by as many tasks. More partitions than a chunk
are answered in chunks: each is looked at at a time of its own, and what one says of another was never
promised. Tiered storage does not exist as a tier here, so nothing was ever moved to one and nothing waits for
it.

    -1 latest    the high watermark, or the last stable offset for readers of committed records
    -2 earliest  the log's start; -4 earliest local is the same
    -3 max       the first record with the largest timestamp
    -5 tiered    none; -6 earliest that waits to be tiered: none
    >= 0         the first record at that time or later; none is no error

Of a partition that nobody can lead, and that a copy is read of, neither the latest offset nor the largest
time is known, nor that a time has no record: LEADER_NOT_AVAILABLE, upon which clients ask again.

A lookup may have to read and to unpack. Each belongs to its connection, of which at most `LOOKUPS_OF_ONE` are
at work while others wait; it ends when the connection does, and with REQUEST_TIMED_OUT after `LOOKUP_S_MAX`,
which clients take for a word to ask again: what was found out till then is kept. One that meets a batch whose
header claims what its records have not, or one of many records where these are walked in Python, is slow from
there on: it releases its permit, and goes on with one of few.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

from millrace.broker.errors import code_of
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.time_lookup import Asker, Lookups
from millrace.broker.partitions.unpacking import Unpacking
from millrace.broker.partitions.visibility import Isolation, isolation_of
from millrace.broker.requests.openings import settled
from millrace.broker.requests.request import ConnectionInfo, RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from millrace.runtime.scheduling.chunks import in_chunks
from millrace.runtime.scheduling.semaphore import Semaphore
from millrace.runtime.scheduling.yield_queue import yield_to_loop

log = logging.getLogger(__name__)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_UNTIERED = -1, -2, -3, -4, -5, -6
SINCE_VERSION = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_UNTIERED: 11,
}
LOOKUPS_AT_ONCE, LOOKUPS_OF_ONE = 16, 12
LOOKUPS_PER_PERMIT = 8  # about a third of a millisecond, where nothing is read
SLOW_AT_ONCE, SLOW_OF_ONE = 2, 1
LOOKUP_S_MAX = 15.0  # of a request; clients wait for 30 s or longer
PARTITIONS_PER_CHUNK = 500
TOPICS_PER_CHUNK = 2_000  # that name no partition
VERSION_WITH_EPOCHS = 4

Place = tuple[
    str, ListOffsetsPartition, ListOffsetsPartitionResponse
]  # a topic's name, what is asked of a partition, its answer


class ListOffsets:
    def __init__(self, directory: PartitionDirectory, unpacking: Unpacking) -> None:
        self._directory = directory
        self._lookups = Lookups(unpacking)
        self._permits = Semaphore(LOOKUPS_AT_ONCE, each_max=LOOKUPS_OF_ONE)
        self._slow_permits = Semaphore(SLOW_AT_ONCE, each_max=SLOW_OF_ONE)

    def handle(
        self, context: RequestContext, request: ListOffsetsRequest
    ) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
        context.connection.is_consuming = True
        if (
            len(request.topics) + sum(len(topic.partitions) for topic in request.topics)
            > PARTITIONS_PER_CHUNK
        ):
            return self._answer_many(context, request)
        counts: Counter[tuple[str, int]] = Counter()
        response = ListOffsetsResponse()
        places = list(_places(request.topics, response, counts))
        slow = self._answer_edges(places, counts, context.api_version, isolation_of(request.isolation_level))
        if slow:
            return self._answer_slowly(context, response, slow, request)
        return _for_version(response, context.api_version)

    async def _answer_many(self, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Each partition's answer holds for the moment at which it was looked at."""
        counts: Counter[tuple[str, int]] = Counter()
        response = ListOffsetsResponse()
        places: list[Place] = []
        async for topics in in_chunks(request.topics, TOPICS_PER_CHUNK, context.work):
            named = _places(topics, response, counts)
            async for part in in_chunks(named, PARTITIONS_PER_CHUNK, context.work):
                places += part
        slow: list[Place] = []
        async for part in in_chunks(places, PARTITIONS_PER_CHUNK, context.work):
            slow += self._answer_edges(
                part, counts, context.api_version, isolation_of(request.isolation_level)
            )
        return await self._answer_slowly(context, response, slow, request)

    def _answer_edges(
        self, places: Sequence[Place], counts: Counter[tuple[str, int]], version: int, isolation: Isolation
    ) -> list[Place]:
        """Answers what can be answered at once, and gives the rest."""
        slow = []
        for place in places:
            name, asked, answer = place
            code = _refusal(asked, version, counts[name, asked.partition_index])
            if code:
                answer.error_code = int(code)
            elif not self._answer_at_once(name, asked, answer, isolation):
                slow.append(place)
        return slow

    def refuse(self, request: ListOffsetsRequest, code: int) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            answers = [
                ListOffsetsPartitionResponse(asked.partition_index, int(code)) for asked in topic.partitions
            ]
            topics.append(ListOffsetsTopicResponse(topic.name, answers))
        return ListOffsetsResponse(topics=topics)

    def _answer_at_once(
        self,
        name: str,
        asked: ListOffsetsPartition,
        answer: ListOffsetsPartitionResponse,
        isolation: Isolation,
    ) -> bool:
        led = self._directory.topic_named(name)
        if led is None:
            answer.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return True
        partition = led.partitions.get(asked.partition_index)
        if partition is None and self._directory.leader_of(led.topic_id, asked.partition_index) is None:
            answer.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return True
        if partition is None or asked.timestamp >= 0 or asked.timestamp == MAX_TIMESTAMP:
            return False
        _answer_edge(partition, asked, answer, isolation)
        return True

    async def _answer_slowly(
        self,
        context: RequestContext,
        response: ListOffsetsResponse,
        slow: list[Place],
        request: ListOffsetsRequest,
    ) -> ListOffsetsResponse:
        limit_s = min(LOOKUP_S_MAX, request.timeout_ms / 1000) if request.timeout_ms > 0 else LOOKUP_S_MAX
        due_s = asyncio.get_running_loop().time() + limit_s
        named = ((name, asked.partition_index) for name, asked, _ in slow)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due_s):
                owner, yielder = context.connection.owner, context.work.yield_queue
                await settled(self._directory, named, owner, yielder, is_reading=True)
        opened: list[Place] = []
        async for part in in_chunks(slow, PARTITIONS_PER_CHUNK, context.work.yield_queue):
            opened += [place for place in part if self._is_at_hand(place, context.connection)]
        isolation, left = isolation_of(request.isolation_level), iter(opened)

        await asyncio.gather(
            *(
                self._look_up_some(left, isolation, context.connection, due_s)
                for _ in range(min(len(opened), LOOKUPS_OF_ONE))
            )
        )
        return _for_version(response, context.api_version)

    def _is_at_hand(self, place: Place, connection: ConnectionInfo) -> bool:
        """Else it is refused."""
        name, asked, _ = place
        try:
            self._directory.at_hand(name, asked.partition_index, connection.owner, is_reading=True)
        except KafkaError as error:
            _refuse(place, error)
            return False
        return True

    async def _look_up_some(
        self, left: Iterator[Place], isolation: Isolation, connection: ConnectionInfo, due_s: float
    ) -> None:
        """Of the places that others look up beside it, until none is left; a few with each permit."""
        place = next(left, None)
        while place is not None:
            count = 0
            try:
                _check_open(connection)
                async with (
                    asyncio.timeout_at(due_s),
                    LookupPermit(self._permits, self._slow_permits, connection) as permit,
                ):
                    while place is not None:
                        await self._look_up(place, isolation, connection, permit)
                        place, count = None, count + 1
                        if count < LOOKUPS_PER_PERMIT and not permit.is_slow:
                            place = next(left, None)
            except Exception as error:
                if place is not None:
                    _refuse(place, error)
            place = next(left, None)

    async def _look_up(
        self, place: Place, isolation: Isolation, connection: ConnectionInfo, permit: LookupPermit
    ) -> None:
        name, asked, answer = place
        partition = self._directory.at_hand(name, asked.partition_index, connection.owner, is_reading=True)
        if asked.timestamp < 0 and asked.timestamp != MAX_TIMESTAMP:
            _answer_edge(partition, asked, answer, isolation)
        else:
            await self._answer_time(partition, asked, answer, isolation, permit)

    async def _answer_time(
        self,
        partition: Partition,
        asked: ListOffsetsPartition,
        answer: ListOffsetsPartitionResponse,
        isolation: Isolation,
        permit: LookupPermit,
    ) -> None:
        code = partition.epoch_refusal(asked.current_leader_epoch)
        if code:
            raise KafkaError(code)
        end, found = partition.visible_end(isolation), None
        if asked.timestamp != MAX_TIMESTAMP:
            found = await self._lookups.find_time(partition, asked.timestamp, end, permit)
        elif not partition.is_copy:
            found = await self._lookups.find_latest(partition, end, permit)
        if found is None and partition.is_copy:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)  # it may lie behind what the copy has
        if found is not None:
            answer.offset, answer.timestamp = found
            answer.leader_epoch = partition.state.epochs.epoch_at(found.offset)


class LookupPermit(Asker):
    """That of a few lookups, until the block is left, and for the rest of that iteration of the loop: an
    ordinary one, and a slow one from where one takes long. So an iteration ends no more lookups than there
    are permits for, however quick they are."""

    def __init__(self, permits: Semaphore, slow_permits: Semaphore, connection: ConnectionInfo) -> None:
        self._slow_permits = slow_permits
        self._connection = connection
        self._held: Semaphore | None = None
        self._first = permits

    async def __aenter__(self) -> LookupPermit:
        try:
            await self._acquire(self._first)
        except BaseException:
            self._release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await yield_to_loop()
        finally:
            self._release()

    @property
    def is_slow(self) -> bool:
        return self._held is self._slow_permits

    async def go_on(self) -> None:
        """Raises KafkaError when nobody is there any more who would hear the answer."""
        _check_open(self._connection)

    async def on_lie(self) -> None:
        await self.on_heavy()

    async def on_heavy(self) -> None:
        await self.go_on()
        if not self.is_slow:
            self._release()
            await self._acquire(self._slow_permits)

    async def _acquire(self, permits: Semaphore) -> None:
        await permits.acquire(self._connection.owner)
        self._held = permits
        await self.go_on()

    def _release(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            held.release(self._connection.owner)


def _check_open(connection: ConnectionInfo) -> None:
    if not connection.is_open:
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the connection that asked is closed")


def _refuse(place: Place, error: Exception) -> None:
    name, asked, answer = place
    code = code_of(error)
    if code is None:
        log.error("%s-%d: lookup of %d failed", name, asked.partition_index, asked.timestamp, exc_info=error)
    answer.error_code = int(code or ErrorCode.UNKNOWN_SERVER_ERROR)


def _places(
    topics: Iterable[ListOffsetsTopic], response: ListOffsetsResponse, counts: Counter[tuple[str, int]]
) -> Iterator[Place]:
    """What is asked, each beside its place in the response; `counts` how often each partition is."""
    for topic in topics:
        answers = ListOffsetsTopicResponse(topic.name)
        response.topics.append(answers)
        for asked in topic.partitions:
            counts[topic.name, asked.partition_index] += 1
            answer = ListOffsetsPartitionResponse(asked.partition_index)
            answers.partitions.append(answer)
            yield topic.name, asked, answer


def _refusal(asked: ListOffsetsPartition, version: int, count: int) -> int:
    if count > 1:
        return ErrorCode.INVALID_REQUEST
    if asked.timestamp < 0 and version < SINCE_VERSION.get(asked.timestamp, 1 << 15):
        return ErrorCode.UNSUPPORTED_VERSION
    return ErrorCode.NONE


def _for_version(response: ListOffsetsResponse, version: int) -> ListOffsetsResponse:
    """Versions that do not carry leader epochs get none."""
    if version < VERSION_WITH_EPOCHS:
        for topic in response.topics:
            for answer in topic.partitions:
                answer.leader_epoch = -1
    return response


def _answer_edge(
    partition: Partition,
    asked: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
    isolation: Isolation,
) -> None:
    code = partition.epoch_refusal(asked.current_leader_epoch)
    if code:
        answer.error_code = code
    elif asked.timestamp == LATEST and partition.is_copy:
        answer.error_code = int(ErrorCode.LEADER_NOT_AVAILABLE)
    elif asked.timestamp == LATEST:
        answer.offset = partition.visible_end(isolation)
        answer.leader_epoch = partition.leader_epoch
    elif asked.timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = partition.log_start_offset
        answer.leader_epoch = partition.state.epochs.epoch_at(partition.log_start_offset)
