"""Idempotent batches of one connection that were refused for now: they have to come again before those behind them.

A producer does not wait for an answer before it sends the next batch. When one is refused (its partition would not open, the request's time was up),
those behind it are on their way. A partition that knows the producer refuses them for their sequence. One that does not takes any
sequence as the first, since what it knew may have expired: the later batch would stand in the log, and the earlier one be refused for ever.
So the connection remembers the first sequence that is missing, until it comes or the producer begins a new epoch; what is behind it meanwhile
is answered with OUT_OF_ORDER_SEQUENCE_NUMBER, which clients that wait for an earlier answer take as a reason to send again.
"""

from __future__ import annotations

from millrace.broker.partitions.producers import SEQUENCE_MAX
from millrace.protocol.batches import HEADER_BYTES, BatchHeader
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError

# What a client sends again as it was.
PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
HALF = SEQUENCE_MAX // 2
# Of one connection; beyond them the oldest is forgotten: who sends to so many partitions at once that will not open is no producer.
GAPS_MAX = 1000

Topic = bytes | str  # as the request names it


class SequenceGaps:
    def __init__(self) -> None:
        # Topic, partition and producer: epoch and sequence.
        self._missing: dict[tuple[Topic, int, int], tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._missing)

    def note(self, topic: Topic, index: int, records: memoryview) -> None:
        """This batch was refused. One that is missing before it stays the one that is missing."""
        if len(records) < HEADER_BYTES:
            return
        header = BatchHeader(records)
        if header.producer_id < 0:
            return
        key = topic, index, header.producer_id
        epoch, sequence = self._missing.get(key, (-1, 0))
        if epoch != header.producer_epoch or _is_behind(sequence, header.base_sequence):
            self._missing[key] = header.producer_epoch, header.base_sequence
            if len(self._missing) > GAPS_MAX:
                del self._missing[next(iter(self._missing))]

    def check(self, topic: Topic, index: int, records: memoryview) -> None:
        """Raises KafkaError for a batch behind one that is missing."""
        if len(records) < HEADER_BYTES:
            return
        header = BatchHeader(records)
        key = topic, index, header.producer_id
        found = self._missing.get(key)
        if found is None:
            return
        epoch, sequence = found
        if epoch == header.producer_epoch and _is_behind(header.base_sequence, sequence):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id}: sequence {header.base_sequence}, and {sequence} was refused and has not come again",
            )
        if epoch != header.producer_epoch or sequence == header.base_sequence:
            del self._missing[key]


def _is_behind(sequence: int, other: int) -> bool:
    """Sequences begin again at 0 after SEQUENCE_MAX."""
    return 0 < ((sequence - other) & SEQUENCE_MAX) <= HALF
