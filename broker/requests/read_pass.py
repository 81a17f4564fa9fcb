"""One read pass of a Fetch over its partitions: what is cached is read at once, what has to come from objects
is a remote read, what may not be read is an error.

A pass goes over the items that are dirty, in the order in which they changed. Sizes (KIP-74): the first batch
of an answer is taken whole whatever the limits say, further ones while they fit both limits. What is answered
with records moves behind what is not, so nobody starves. Towards a minimum counts what could be read at once
within the limits, as in Kafka: where more lies behind the whole batches taken, the limit.

A remote read comes after what is cached, yet its turn is where it stands: its share of the answer is set
aside, and so is the right to the oversize batch. What it leaves of these is for those who were postponed
meanwhile.

Not here: sessions, what a request does after a pass (fetch_machine.py), the response (handlers/fetch.py).
Keeps true: an item is marked clean only when nothing is left to read at its offset; after `refuse_unopened`
and `read_remote` every item of the pass has an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millrace.broker.errors import code_of
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.visibility import Isolation
from millrace.broker.purgatory import Subscriber, Subscription
from millrace.broker.requests.fetch_sessions import FetchItem
from millrace.broker.requests.request import ConnectionInfo
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.fetch import EpochEndOffset, PartitionData
from millrace.runtime.errors import MillraceError
from millrace.runtime.scheduling.chunks import Yielder
from millrace.runtime.scheduling.semaphore import Semaphore
from millrace.s3stream.objects.format import Entry

VERSION_WITH_STORAGE_ERROR = 6
REMOTE_READS_AT_ONCE = 16
ITEMS_PER_CHUNK = 500
# How long an answer waits for the store: with nothing to tell, and when it has records that others wait for.
# The load goes on.
REMOTE_READ_S = 10.0
REMOTE_READ_BESIDE_RECORDS_S = 3.0
# What consumers know how to take from a partition's answer; anything else makes Java's throw.
ANSWERABLE = frozenset(
    (
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    )
)


class ReadPass:
    """`max_bytes`: of one answer, as of the next pass. `is_urgent`, `left_bytes` (neither taken nor set
    aside), `total_bytes` (taken), `counted_bytes` (towards the request's minimum), `remote` (reads to come:
    item, partition, end, share) and `openings` (each with the time until which it is waited for) are of the
    current pass; `answers` of all, the last word on each item."""

    __slots__ = (
        "_connection",
        "_directory",
        "_is_oversize_allowed",
        "_is_remote_over",
        "_isolation",
        "_postponed",
        "_subscriber",
        "_version",
        "answers",
        "counted_bytes",
        "is_urgent",
        "left_bytes",
        "max_bytes",
        "openings",
        "remote",
        "total_bytes",
    )

    def __init__(
        self,
        directory: PartitionDirectory,
        subscriber: Subscriber,
        connection: ConnectionInfo,
        *,
        max_bytes: int,
        isolation: Isolation,
        version: int,
    ) -> None:
        self._directory = directory
        self._subscriber = subscriber
        self._connection = connection
        self.max_bytes = max_bytes
        self._isolation = isolation
        self._version = version
        self.answers: dict[FetchItem, PartitionData] = {}
        self.is_urgent = False  # an error or a divergence: no waiting for more
        self.left_bytes = max_bytes
        self.total_bytes = 0
        self.counted_bytes = 0
        self.remote: list[tuple[FetchItem, Partition, int, int]] = []
        self.openings: list[tuple[asyncio.Future[Partition], float]] = []
        # for want of room beside the shares of `remote`
        self._postponed: list[tuple[FetchItem, Partition, int]] = []
        self._is_oversize_allowed = True  # a batch above the limits may be taken: none was yet (KIP-74)
        self._is_remote_over = False  # nothing is read from objects any more

    def run(self) -> None:
        """Reads what can be read at once of everything that is dirty."""
        self._begin()
        self._read_all(list(self._subscriber.dirty))

    async def run_in_chunks(self, yielder: Yielder) -> None:
        """The same, of very many: others have the loop meanwhile. What leaves the subscriber until its
        chunk is read is passed over."""
        self._begin()
        changed = list(self._subscriber.dirty)
        for start in range(0, len(changed), ITEMS_PER_CHUNK):
            await yielder.yield_now()
            self._read_all(changed[start : start + ITEMS_PER_CHUNK])

    def _begin(self) -> None:
        self.is_urgent = False
        self.left_bytes = self.max_bytes
        self.total_bytes = 0
        self.counted_bytes = 0
        self.remote = []
        self.openings = []
        self._postponed = []
        self._is_oversize_allowed = True
        self._is_remote_over = False

    def _read_all(self, items: Sequence[Subscription]) -> None:
        for item in items:
            assert isinstance(item, FetchItem)
            if item.subscriber is not self._subscriber:
                continue
            try:
                self._read_item(item)
            except (KafkaError, MillraceError) as error:
                self._fail(item, error)

    def _read_item(self, item: FetchItem) -> None:
        partition = self._find(item)
        if partition is None:
            return
        item.subscribe(partition.subscriptions)
        answer = self._state_of(item, partition)
        self.answers[item] = answer
        if answer.diverging_epoch.epoch >= 0:
            self.is_urgent = True
            return
        item.countable_bytes = max(0, item.max_bytes)
        end = partition.visible_end(self._isolation)
        if item.fetch_offset >= end:
            self._subscriber.mark_clean(item)
        else:
            self._read_cached(item, partition, end)

    def _read_cached(self, item: FetchItem, partition: Partition, end: int) -> None:
        """Takes what is at hand, and sets a share aside for what is not."""
        is_first = self._is_oversize_allowed and not self.remote
        if self.left_bytes <= 0 and not is_first:
            if self.remote:
                self._postponed.append((item, partition, end))
            return
        limit = min(item.max_bytes, self.left_bytes)
        entries = partition.data.read_cached(item.fetch_offset, end, max(limit, 1))
        if entries is None and not self._is_remote_over:
            share = max(0, limit)
            self.left_bytes -= share
            self.remote.append((item, partition, end, share))
        elif entries is None or not self._take(item, entries, end, limit, is_first):
            if self.remote:
                self._postponed.append((item, partition, end))
            else:
                self._count_limit(item)

    def _read_postponed(self) -> None:
        """In order, as far as there is room now."""
        waiting, self._postponed = self._postponed, []
        for place, (item, partition, end) in enumerate(waiting):
            if self.left_bytes <= 0 and (self.remote or not self._is_oversize_allowed):
                self._postponed += waiting[place:]
                return
            try:
                self._read_cached(item, partition, end)
            except MillraceError as error:
                self._fail(item, error)

    def _find(self, item: FetchItem) -> Partition | None:
        """None while it opens. Raises KafkaError."""
        topic = item.topic
        if isinstance(topic, str):
            led = self._directory.topic_named(topic)
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            led = self._directory.topic_of(topic)
            missing = ErrorCode.UNKNOWN_TOPIC_ID
        if led is None:
            raise KafkaError(missing)
        partition = led.partitions.get(item.partition)
        if partition is not None:
            return partition
        found = self._directory.get(led.topic_id, item.partition, self._connection.owner, is_reading=True)
        if isinstance(found, Partition):
            return found
        self.openings.append((found, self._directory.opening_due_s(led.topic_id, item.partition, found)))
        return None

    def _state_of(self, item: FetchItem, partition: Partition) -> PartitionData:
        """The answer without records. Raises KafkaError when the partition may not be read like this."""
        code = partition.epoch_refusal(item.leader_epoch)
        if code:
            raise KafkaError(code)
        log_start, offset = partition.log_start_offset, item.fetch_offset
        answer = PartitionData(
            item.partition, 0, partition.high_watermark, partition.last_stable_offset, log_start
        )
        if partition.is_copy:  # its end is not the partition's: nobody has read all that there is
            end = max(partition.high_watermark, offset) + 1
            answer.high_watermark = answer.last_stable_offset = end
        answer.records = b""
        if not self._isolation:  # readers of committed records alone are told of aborts
            answer.aborted_transactions = None
        if item.last_fetched_epoch >= 0:
            epoch, end = partition.end_of_epoch(item.last_fetched_epoch)
            if epoch < 0:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < item.last_fetched_epoch or end < offset:
                answer.diverging_epoch = EpochEndOffset(epoch, end)
                return answer
        if not partition.holds(offset):
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return answer

    def _count(self, item: FetchItem, size_bytes: int) -> None:
        """So much of the item is there to be read: as far as its limit goes, what came behind it since the
        pass began has counted already, and what comes will count. The first batch of an answer counts
        whole."""
        countable_bytes = item.countable_bytes
        self.counted_bytes += min(size_bytes, countable_bytes) + max(0, size_bytes - item.max_bytes)
        item.countable_bytes = max(0, countable_bytes - size_bytes)

    def _count_limit(self, item: FetchItem) -> None:
        """It has records, and none is taken: they are there to be asked for."""
        self._count(item, max(0, item.max_bytes))

    def _take(self, item: FetchItem, entries: list[Entry], end: int, limit: int, is_first: bool) -> bool:
        """Puts records into the answer, unless not even one batch fits. The first one's go whole, as they
        were read."""
        records = [entry.data for entry in entries]
        size_bytes = sum(map(len, records))
        if size_bytes > limit and not is_first:
            if len(records[0]) > limit:
                return False
            while size_bytes > limit:
                size_bytes -= len(records.pop())
        self.answers[item].records = records
        has_more = bool(records) and entries[len(records) - 1].end < end
        self._count(item, max(size_bytes, item.max_bytes) if has_more else size_bytes)
        self.total_bytes += size_bytes
        self.left_bytes -= size_bytes
        if is_first and size_bytes:
            self._is_oversize_allowed = False
        return True

    def _fail(self, item: FetchItem, error: Exception) -> None:
        code = int(code_of(error) or ErrorCode.UNKNOWN_SERVER_ERROR)
        if code not in ANSWERABLE:
            code = ErrorCode.KAFKA_STORAGE_ERROR
        if code == ErrorCode.KAFKA_STORAGE_ERROR and self._version < VERSION_WITH_STORAGE_ERROR:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.answers[item] = failed(item.partition, code)
        self.is_urgent = True

    def drop_records(self) -> None:
        """It is not answered yet, and the next pass reads them again: what waits for more holds nothing that
        its frame is not charged for."""
        for answer in self.answers.values():
            if answer.records:
                answer.records = b""

    def refuse_unopened(self) -> None:
        """Partitions that would not open in time: their clients may ask again."""
        for item in list(self._subscriber.dirty):
            if isinstance(item, FetchItem) and item not in self.answers:
                self._fail(item, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.openings = []

    async def read_remote(self, gate: Semaphore) -> None:
        """Several partitions at once, in order, as far as the budget goes; those behind it have their turn
        next time. `gate` bounds the reads of all requests, but for what another broker is asked for
        (owed_range_reader.py has bounds of its own). A store that does not answer in time fails what
        was asked of it, unless there is something to tell."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (REMOTE_READ_BESIDE_RECORDS_S if self._has_records() else REMOTE_READ_S)
        late: list[tuple[FetchItem, TimeoutError]] = []
        while self.remote and loop.time() < deadline:
            planned, self.remote = self.remote[:REMOTE_READS_AT_ONCE], self.remote[REMOTE_READS_AT_ONCE:]
            found = await asyncio.gather(*(self._read_one_remote(gate, deadline, *plan) for plan in planned))
            for (item, _, end, share), entries in zip(planned, found, strict=True):
                self.left_bytes += share
                if isinstance(entries, list):
                    limit = min(item.max_bytes, self.left_bytes)
                    if entries and not self._take(item, entries, end, limit, self._is_oversize_allowed):
                        self._count_limit(item)
                elif isinstance(entries, TimeoutError):
                    late.append((item, entries))
                else:
                    self._fail(item, entries)
            if not self.remote:
                self._read_postponed()
        self._end_reading(late)

    def _end_reading(self, late: list[tuple[FetchItem, TimeoutError]]) -> None:
        """What was set aside for the store's answers, and is not needed, goes to what is at hand."""
        unread, self.remote = self.remote, []
        self._is_remote_over = True
        for item, _, _, share in unread:
            self.left_bytes += share
            self._count_limit(item)
        self._read_postponed()
        for item, error in late:
            if self.total_bytes:
                self._count_limit(item)
            else:
                self._fail(item, error)

    def _has_records(self) -> bool:
        """Whether the answer has something to tell, or will have as soon as shares are given back."""
        if self.total_bytes:
            return True
        try:
            return any(
                partition.data.read_cached(item.fetch_offset, end, 1)
                for item, partition, end in self._postponed
            )
        except MillraceError:  # by now it is fenced, or trimmed: told in its turn
            return True

    async def _read_one_remote(
        self,
        gate: Semaphore,
        deadline: float,
        item: FetchItem,
        partition: Partition,
        end: int,
        share: int,
    ) -> list[Entry] | MillraceError | TimeoutError:
        try:
            async with asyncio.timeout_at(deadline):
                asker, wanted = self._connection.owner, (item.fetch_offset, end, max(1, share))
                if partition.data.is_owed(item.fetch_offset):
                    return await partition.data.fetch(*wanted)  # its owner may stand still
                await gate.acquire(asker)
                try:
                    return await partition.data.fetch(*wanted)
                finally:
                    gate.release(asker)
        except (MillraceError, TimeoutError) as error:
            return error


def failed(index: int, code: int) -> PartitionData:
    """A partition's answer that is an error."""
    return PartitionData(index, int(code), -1, -1, -1, records=b"")
