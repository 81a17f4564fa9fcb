"""Idempotent batches of one connection that were refused for now: they have to come again before those behind
them.

A producer does not wait for an answer before it sends the next batch. When one is refused (its partition
would not open, the request's time was up), those behind it are on their way. A partition that knows the
producer refuses them for their sequence. One that does not takes any sequence as the first, since what it
knew may have expired: the later batch would stand in the log, and the earlier one be refused for ever. So the
connection remembers the first sequence that is missing, until it comes, the producer begins a new epoch or
the partition knows the producer again (it may have written elsewhere meanwhile, and the partition judges by
itself); what is behind it meanwhile is answered with OUT_OF_ORDER_SEQUENCE_NUMBER, which clients that wait
for an earlier answer take as a reason to send again. What was on its way arrives soon: an entry of `GAP_MS`
is void.

Where more are missing than are remembered, as when thousands of partitions move at once, a partition that
does not know a producer is given nothing but its first sequence of all for as long.
"""

from __future__ import annotations

from typing import NamedTuple

from millrace.broker.partitions.producers import RETRY_CODE, SEQUENCE_MAX, Producers
from millrace.protocol.batches import HEADER_BYTES, BatchHeader
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError

# What a client sends again as it was.
RETRIABLE_CODES = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        RETRY_CODE,
    }
)
HALF = SEQUENCE_MAX // 2
GAPS_MAX = 1000  # of one connection; beyond them the oldest is forgotten
GAP_MS = 60_000
TOPIC_MAX = 249  # characters; no topic has a longer name

Topic = bytes | str  # as the request names it


class _Gap(NamedTuple):
    """The first sequence that is missing, and the monotonic clock's reading when it was last refused."""

    epoch: int
    sequence: int
    noted_ms: int


class SequenceGaps:
    def __init__(self) -> None:
        # By topic, partition and producer, in the order in which they were refused last.
        self._missing: dict[tuple[Topic, int, int], _Gap] = {}
        self._forgot_ms: int | None = None  # when one was forgotten last

    def __len__(self) -> int:
        return len(self._missing)

    def __bool__(self) -> bool:
        """Whether anything is to be checked."""
        return bool(self._missing) or self._forgot_ms is not None

    def note(self, topic: Topic, index: int, records: memoryview, tick_ms: int) -> None:
        """This batch was refused."""
        if len(records) >= HEADER_BYTES:
            header = BatchHeader(records)
            self.note_batch(
                topic, index, header.producer_id, header.producer_epoch, header.base_sequence, tick_ms
            )

    def note_batch(
        self, topic: Topic, index: int, producer_id: int, epoch: int, sequence: int, tick_ms: int
    ) -> None:
        """So was this one. One that is missing before it stays the one that is missing."""
        if producer_id < 0 or len(topic) > TOPIC_MAX:
            return
        key = topic, index, producer_id
        gap = self._missing.pop(key, None)
        if gap is not None and gap.epoch == epoch and not _is_behind(gap.sequence, sequence):
            sequence = gap.sequence
        self._missing[key] = _Gap(epoch, sequence, tick_ms)
        if len(self._missing) > GAPS_MAX:
            del self._missing[next(iter(self._missing))]
            self._forgot_ms = tick_ms

    def check(
        self, topic: Topic, index: int, records: memoryview, producers: Producers, tick_ms: int
    ) -> None:
        """Raises KafkaError for a batch behind one that is missing, unless the partition knows its
        producer."""
        if len(records) < HEADER_BYTES:
            return
        header = BatchHeader(records)
        key = topic, index, header.producer_id
        gap = self._missing.get(key)
        sequence = header.base_sequence
        if gap is None:
            if sequence > 0 and self._may_be_behind(header.producer_id, producers, tick_ms):
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id}: sequence {sequence}, and more were refused than are "
                    "remembered",
                )
            return
        is_old = gap.epoch != header.producer_epoch or tick_ms - gap.noted_ms >= GAP_MS
        if is_old or sequence == gap.sequence or header.producer_id in producers:
            del self._missing[key]
        elif _is_behind(sequence, gap.sequence):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: sequence {sequence}, and {gap.sequence} was refused and has "
                "not come again",
            )

    def _may_be_behind(self, producer_id: int, producers: Producers, tick_ms: int) -> bool:
        """What is missing before it may be one that was forgotten."""
        if self._forgot_ms is not None and tick_ms - self._forgot_ms >= GAP_MS:
            self._forgot_ms = None
        return self._forgot_ms is not None and producer_id >= 0 and producer_id not in producers


def _is_behind(sequence: int, other: int) -> bool:
    """Sequences begin again at 0 after SEQUENCE_MAX."""
    return 0 < ((sequence - other) & SEQUENCE_MAX) <= HALF
