"""Whether each record of a batch is one that consumers can read: what `record.validation=records` asks, as
Kafka's LogValidator. Pure.

A batch is unpacked, and its records walked (protocol/record_walk.py), before it is given an offset. What
cannot be read is INVALID_RECORD: Kafka answers that too, or -1 where a codec fails. Records without a key on
a compacted topic, and those whose time the topic does not take, are told by their indexes (KIP-467). The
largest timestamp in the header becomes the records' own where it is another, as Kafka writes it.

What takes long (`RecordLook`) is done before the append, off the loop (unpacking.py). Not here: the header
(protocol/batches.py), other reasons to look into a batch (rewrite.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.broker.partitions.rewrite import (
    CHUNK_RECORDS,
    INDEXES_TOLD_MAX,
    RECOMPRESSED_INLINE_BYTES_MAX,
    InvalidRecords,
    has_new_codec,
    unreadable,
    with_max_timestamp,
)
from millrace.broker.partitions.settings import TopicSettings
from millrace.protocol.batches import HEADER_BYTES, INT64_MAX, BatchHeader, Codec, ProduceRules
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError, WireError
from millrace.protocol.primitives import Buffer
from millrace.protocol.record_walk import FAULT_TEXTS, IS_COMPILED, NO_TIMESTAMP, Fault, Walked, walk

# To hand work over to a thread and to park its request costs 0.2 ms. So much is unpacked in as much time by
# all codecs but gzip, which takes three times that.
PACKED_INLINE_BYTES_MAX = 64 << 10
UNPACKED_INLINE_BYTES_MAX = 256 << 10
# Of one request: the smallest records that fit take 3 ms to walk.
LOOKED_INLINE_BYTES_MAX = 2 << 20

INT64_MIN = -INT64_MAX - 1


class TooLong:
    """Told in place of an answer: to look takes longer than one iteration of the loop may."""


TOO_LONG: Final = TooLong()
Looked = Walked | WireError


class RecordLook:
    """Looks at the records of batches that are unpacked in no more time than a hand-over takes. A broker has
    one: what is unpacked lies in the same memory each time, and is walked at once."""

    def __init__(self) -> None:
        self._scratch: memoryview | None = None  # made when a batch is unpacked
        self.unpacked_bytes = 0  # by the last look

    def __call__(self, view: memoryview, settings: TopicSettings, now_ms: int) -> Looked | TooLong:
        """What the walk says, or why there is nothing to walk; TOO_LONG also where what else is to be done
        with the batch takes longer. The header is not judged."""
        self.unpacked_bytes = 0
        if len(view) < HEADER_BYTES:
            return NO_TIMESTAMP  # its refusal is quick
        header = BatchHeader(view)
        bytes_max = (
            RECOMPRESSED_INLINE_BYTES_MAX if has_new_codec(header, settings) else UNPACKED_INLINE_BYTES_MAX
        )
        if not IS_COMPILED and header.record_count > CHUNK_RECORDS:
            return TOO_LONG
        data = view[HEADER_BYTES:]
        if header.codec == Codec.NONE:
            is_long = len(data) > (
                LOOKED_INLINE_BYTES_MAX if bytes_max == UNPACKED_INLINE_BYTES_MAX else bytes_max
            )
            return TOO_LONG if is_long else walk_records(data, header, settings, now_ms)
        if len(data) > min(PACKED_INLINE_BYTES_MAX, bytes_max):
            return TOO_LONG
        return self._unpack_and_walk(header, data, bytes_max, settings, now_ms)

    def _unpack_and_walk(
        self, header: BatchHeader, data: memoryview, bytes_max: int, settings: TopicSettings, now_ms: int
    ) -> Looked | TooLong:
        from millrace.protocol.compression import RecordsTooLarge, unpack_into

        if self._scratch is None:
            self._scratch = memoryview(bytearray(UNPACKED_INLINE_BYTES_MAX))
        try:
            records = unpack_into(header.codec, data, self._scratch[:bytes_max])
        except RecordsTooLarge:
            return TOO_LONG
        except WireError as error:
            return WireError(str(error))  # without the frames that the other knows, and their views
        self.unpacked_bytes = len(records)
        return walk_records(records, header, settings, now_ms)


def walk_records(records: Buffer, header: BatchHeader, settings: TopicSettings, now_ms: int) -> Walked:
    """The walk, for what the topic asks of records."""
    rules = settings.record_rules
    assert rules is not None
    earliest, latest = times_taken(rules, now_ms)
    return walk(records, header.record_count, header.base_timestamp, earliest, latest, settings.is_compacted)


def walk_batch(
    view: memoryview, header: BatchHeader, looked: Looked | None, settings: TopicSettings, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """The batch with its records' largest timestamp. `looked`: what a look at it told; None where it is not
    compressed, and is walked now. Raises KafkaError for records that consumers cannot read, or that the topic
    does not take."""
    if looked is None:
        assert header.codec == Codec.NONE
        looked = walk_records(view[HEADER_BYTES:], header, settings, now_ms)
    if isinstance(looked, WireError):
        raise unreadable(looked)
    assert settings.record_rules is not None
    return judge(view, header, looked, settings.record_rules, now_ms)


def judge(
    view: memoryview, header: BatchHeader, walked: Walked, rules: ProduceRules, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """As `walk_batch`, once the walk is done."""
    if not isinstance(walked, int):
        raise refusal_of(walked, rules, now_ms)
    if walked != header.max_timestamp and not rules.is_append_time:
        return with_max_timestamp(view, header, walked)
    return view, header


def times_taken(rules: ProduceRules, now_ms: int) -> tuple[int, int]:
    """The earliest and the latest timestamp that a record may have."""
    if rules.is_append_time:
        return INT64_MIN, INT64_MAX
    earliest = max(now_ms - rules.timestamp_before_max_ms, INT64_MIN)
    return earliest, min(now_ms + rules.timestamp_after_max_ms, INT64_MAX)


def refusal_of(walked: tuple[int, int, list[int], list[int]], rules: ProduceRules, now_ms: int) -> KafkaError:
    """What cannot be read is told before what is not taken; a time that is not taken, before a key that is
    missing: Kafka's order."""
    fault, index, keyless, untimely = walked
    if fault:
        return KafkaError(ErrorCode.INVALID_RECORD, f"record {index} {FAULT_TEXTS[Fault(fault)]}")
    earliest, latest = times_taken(rules, now_ms)
    no_key, no_time = (
        "compacted topics take no record without a key",
        f"its timestamp is outside [{earliest}, {latest}]",
    )
    errors = sorted([(one, no_key) for one in keyless] + [(one, no_time) for one in untimely])
    told = errors[:INDEXES_TOLD_MAX]
    count = f"{len(told)} records" if len(told) < INDEXES_TOLD_MAX else f"{INDEXES_TOLD_MAX} records or more"
    code = ErrorCode.INVALID_TIMESTAMP if untimely else ErrorCode.INVALID_RECORD
    return InvalidRecords(told, f"{count} refused; of record {told[0][0]}: {told[0][1]}", code)


def slow_validation(static: Mapping[str, str]) -> str:
    """A sentence where the broker's settings ask for every record to be looked at, and the compiled walk is
    missing; "" else."""
    if IS_COMPILED or static.get("record.validation") != "records":
        return ""
    return (
        "record.validation=records, and the compiled walk over records is missing (protocol/_record_walk): "
        "Python's own takes a hundred times as "
        "long, about a microsecond a record; install where there is a C compiler, or from a wheel for this "
        "Python"
    )
