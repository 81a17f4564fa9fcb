"""One fetch's look at its partitions: what can be read at once, what has to come from objects, what may not be read.

A look goes over the items that changed, in the order in which they did. Sizes (KIP-74): the first batch of an answer is taken whole whatever
the limits say, further ones while they fit both limits. What was taken moves behind what was not, so nobody starves. Towards a minimum
counts what could be read at once within the limits, as in Kafka: where more lies behind the whole batches taken, the limit.

What has to come from objects is read after what is at hand, yet its turn is where it stands: its share of the answer is set aside, and so is
the right to the batch that goes whole. What it leaves of these is for those who were put off meanwhile.

Not here: sessions, waiting and the response (handlers/fetch.py). Keeps true: an item is settled only when nothing is left to read at its
offset; after `fail_late` and `read_cold` every item that was looked at has an answer.
"""

from __future__ import annotations

import asyncio

from millrace.broker.damage_log import DamageLog
from millrace.broker.errors import code_of
from millrace.broker.fetch_sessions import FetchItem
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.partitions.partition import Partition
from millrace.broker.waiters import Watcher
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.fetch import EpochEndOffset, PartitionData
from millrace.runtime.errors import MillraceError
from millrace.s3stream.objects.format import Entry

VERSION_WITH_STORAGE_ERROR = 6
COLD_READS_AT_ONCE = 16
# How long an answer waits for the store: with nothing to tell, and when it has records that others wait for. The load goes on.
COLD_READ_S = 10.0
COLD_READ_BESIDE_RECORDS_S = 3.0
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


class Look:
    """`max_bytes`: of one answer, as of the next round. `left_bytes` (neither taken nor set aside), `total_bytes` (taken), `counted_bytes`
    (towards the request's minimum), `cold` (with its shares) and `openings` are of the current round; `answers` of all, the last word on
    each item."""

    __slots__ = (
        "_damage",
        "_directory",
        "_is_committed_only",
        "_is_late",
        "_is_whole_free",
        "_put_off",
        "_version",
        "_watcher",
        "answers",
        "cold",
        "counted_bytes",
        "is_urgent",
        "left_bytes",
        "max_bytes",
        "openings",
        "total_bytes",
    )

    def __init__(
        self,
        directory: PartitionDirectory,
        watcher: Watcher,
        damage: DamageLog,
        *,
        max_bytes: int,
        is_committed_only: bool,
        version: int,
    ) -> None:
        self._directory = directory
        self._damage = damage
        self._watcher = watcher
        self.max_bytes = max_bytes
        self._is_committed_only = is_committed_only
        self._version = version
        self.answers: dict[FetchItem, PartitionData] = {}
        self.is_urgent = False  # an error or a divergence: no waiting for more
        self.left_bytes = max_bytes
        self.total_bytes = 0
        self.counted_bytes = 0
        self.cold: list[tuple[FetchItem, Partition, int]] = []
        self.openings: list[asyncio.Future[Partition]] = []
        self._put_off: list[tuple[FetchItem, Partition, int]] = []  # for want of room beside the shares of `cold`
        self._is_whole_free = True  # the batch that goes whole was not taken yet
        self._is_late = False  # nothing is read from objects any more

    def look(self) -> None:
        """Reads what can be read at once of everything that changed."""
        self.left_bytes = self.max_bytes
        self.total_bytes = 0
        self.counted_bytes = 0
        self.cold = []
        self.openings = []
        self._put_off = []
        self._is_whole_free = True
        self._is_late = False
        for item in list(self._watcher.changed):
            assert isinstance(item, FetchItem)
            try:
                self._look_at(item)
            except (KafkaError, MillraceError) as error:
                self._fail(item, error)

    def _look_at(self, item: FetchItem) -> None:
        partition = self._find(item)
        if partition is None:
            return
        item.stand_at(partition.watches)
        answer = self._state_of(item, partition)
        self.answers[item] = answer
        if answer.diverging_epoch.epoch >= 0:
            self.is_urgent = True
            return
        item.countable_bytes = item.max_bytes
        end = self._end_of(answer)
        if item.fetch_offset >= end:
            self._watcher.settle(item)
        else:
            self._reach(item, partition, end)

    def _reach(self, item: FetchItem, partition: Partition, end: int) -> None:
        """Takes what is at hand, and sets a share aside for what is not."""
        is_first = self._is_whole_free and not self.cold
        if self.left_bytes <= 0 and not is_first:
            if self.cold:
                self._put_off.append((item, partition, end))
            return
        limit = min(item.max_bytes, self.left_bytes)
        entries = partition.data.read_cached(item.fetch_offset, end, max(limit, 1))
        if entries is None and not self._is_late:
            share = max(0, limit)
            self.left_bytes -= share
            self.cold.append((item, partition, share))
        elif entries is None or not self._take(item, entries, end, limit, is_first):
            if self.cold:
                self._put_off.append((item, partition, end))
            else:
                self._count_limit(item)

    def _reach_put_off(self) -> None:
        """In order, as far as there is room now."""
        waiting, self._put_off = self._put_off, []
        for place, (item, partition, end) in enumerate(waiting):
            if self.left_bytes <= 0 and (self.cold or not self._is_whole_free):
                self._put_off += waiting[place:]
                return
            try:
                self._reach(item, partition, end)
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
        found = self._directory.get(led.topic_id, item.partition)
        if isinstance(found, Partition):
            return found
        self.openings.append(found)
        return None

    def _state_of(self, item: FetchItem, partition: Partition) -> PartitionData:
        """The answer without records. Raises KafkaError when the partition may not be read like this."""
        code = partition.epoch_refusal(item.leader_epoch)
        if code:
            raise KafkaError(code)
        log_start, offset = partition.log_start_offset, item.fetch_offset
        answer = PartitionData(item.partition, 0, partition.high_watermark, partition.last_stable_offset, log_start)
        answer.records = b""
        if not self._is_committed_only:
            answer.aborted_transactions = None
        if item.last_fetched_epoch >= 0:
            epoch, end = partition.end_of_epoch(item.last_fetched_epoch)
            if epoch < 0:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < item.last_fetched_epoch or end < offset:
                answer.diverging_epoch = EpochEndOffset(epoch, end)
                return answer
        if not log_start <= offset <= partition.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return answer

    def _end_of(self, answer: PartitionData) -> int:
        """Where what this reader may see ends."""
        return answer.last_stable_offset if self._is_committed_only else answer.high_watermark

    def _count(self, item: FetchItem, size_bytes: int) -> None:
        """So much of the item is there to be read: what comes behind it counts as far as its limit goes."""
        self.counted_bytes += size_bytes
        item.countable_bytes = max(0, item.max_bytes - size_bytes)

    def _count_limit(self, item: FetchItem) -> None:
        """It has records, and none is taken: they are there to be asked for."""
        self._count(item, max(0, item.max_bytes))

    def _take(self, item: FetchItem, entries: list[Entry], end: int, limit: int, is_first: bool) -> bool:
        """Puts records into the answer, unless not even one batch fits. The first one's go whole, as they were read."""
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
            self._is_whole_free = False
        watcher = self._watcher
        if item.watcher is watcher:  # a session may have forgotten it during a read
            watcher.settle(item)  # to the end of the line
            watcher.mark(item)
        return True

    def _fail(self, item: FetchItem, error: Exception) -> None:
        code = int(code_of(error) or ErrorCode.UNKNOWN_SERVER_ERROR)
        if code not in ANSWERABLE:
            code = ErrorCode.KAFKA_STORAGE_ERROR
        if code == ErrorCode.KAFKA_STORAGE_ERROR and self._version < VERSION_WITH_STORAGE_ERROR:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.answers[item] = failed(item.partition, code)
        self.is_urgent = True

    def fail_late(self) -> None:
        """Partitions that would not open in time: their clients may ask again."""
        for item in list(self._watcher.changed):
            if isinstance(item, FetchItem) and item not in self.answers:
                self._fail(item, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.openings = []

    async def read_cold(self, gate: asyncio.Semaphore) -> None:
        """Several partitions at once, in order, as far as the budget goes; those behind it have their turn next time. `gate` bounds
        the reads of all requests. A store that does not answer in time fails what was asked of it, unless there is something to tell."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (COLD_READ_BESIDE_RECORDS_S if self._has_records() else COLD_READ_S)
        late: list[tuple[FetchItem, Partition, TimeoutError]] = []
        while self.cold and loop.time() < deadline:
            planned, self.cold = self.cold[:COLD_READS_AT_ONCE], self.cold[COLD_READS_AT_ONCE:]
            found = await asyncio.gather(*(self._read(gate, deadline, *plan) for plan in planned))
            for (item, partition, share), entries in zip(planned, found, strict=True):
                self.left_bytes += share
                if isinstance(entries, list):
                    end, limit = self._end_of(self.answers[item]), min(item.max_bytes, self.left_bytes)
                    if entries and not self._take(item, entries, end, limit, self._is_whole_free):
                        self._count_limit(item)
                elif isinstance(entries, TimeoutError):
                    late.append((item, partition, entries))
                else:
                    self._fail_reading(item, partition, entries)
            if not self.cold:
                self._reach_put_off()
        self._end_reading(late)

    def _end_reading(self, late: list[tuple[FetchItem, Partition, TimeoutError]]) -> None:
        """What was set aside for the store's answers, and is not needed, goes to what is at hand."""
        unread, self.cold = self.cold, []
        self._is_late = True
        for item, _, share in unread:
            self.left_bytes += share
            self._count_limit(item)
        self._reach_put_off()
        for item, partition, error in late:
            if self.total_bytes:
                self._count_limit(item)
            else:
                self._fail_reading(item, partition, error)

    def _has_records(self) -> bool:
        """Whether the answer has something to tell, or will have as soon as shares are given back."""
        if self.total_bytes:
            return True
        try:
            return any(partition.data.read_cached(item.fetch_offset, end, 1) for item, partition, end in self._put_off)
        except MillraceError:  # by now it is fenced, or trimmed: told in its turn
            return True

    def _fail_reading(self, item: FetchItem, partition: Partition, error: Exception) -> None:
        self._damage.note(asyncio.get_running_loop().time(), f"{partition.topic_name}-{partition.index}", error)
        self._fail(item, error)

    async def _read(
        self, gate: asyncio.Semaphore, deadline: float, item: FetchItem, partition: Partition, share: int
    ) -> list[Entry] | MillraceError | TimeoutError:
        end = self._end_of(self.answers[item])
        try:
            async with asyncio.timeout_at(deadline), gate:
                return await partition.data.fetch(item.fetch_offset, end, max(1, share))
        except (MillraceError, TimeoutError) as error:
            return error


def failed(index: int, code: int) -> PartitionData:
    """A partition's answer that is an error."""
    return PartitionData(index, int(code), -1, -1, -1, records=b"")
