"""The few batches that are not appended as they came: of topics that are compacted, recompressed, stamped
with the broker's time, and of clients whose header cannot tell the largest timestamp. Pure.

Kafka's order: keys are demanded, then the codec is the topic's, then the time is the broker's, then the size
is checked again. The largest timestamp, by which a time is found and retention goes, is written by Kafka's
broker in each batch; here where it cannot be right.

A batch for which that takes long (`is_slow`) is looked into and recompressed before its append, off the loop
(unpacking.py); what is left for the append is then the time and the size.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

from millrace.broker.partitions.settings import TopicSettings
from millrace.protocol.batches import (
    CODEC_MASK,
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    check_timestamps,
    has_unset_max_timestamp,
    is_intact,
    pack_batch,
    with_log_append_time,
)
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError, WireError

INDEXES_TOLD_MAX = 100  # record errors in one answer
CHUNK_RECORDS = 2048  # whose heads are read in one iteration of the loop: two milliseconds
# To hand work over to a thread and to park its request costs about 0.2 ms. At its highest level zstd takes 3
# ms for so much, all others less than 0.5; to unpack eight times as much takes 0.2.
RECOMPRESSED_INLINE_BYTES_MAX = 8 << 10
UNPACKED_INLINE_BYTES_MAX = 64 << 10


class InvalidRecords(KafkaError):
    """Some records of a batch are to blame: the indexes of the first, and why of each."""

    def __init__(
        self, errors: list[tuple[int, str]], message: str, code: ErrorCode = ErrorCode.INVALID_RECORD
    ) -> None:
        super().__init__(code, message)
        self.errors = errors[:INDEXES_TOLD_MAX]


def has_new_codec(header: BatchHeader, settings: TopicSettings) -> bool:
    return settings.codec is not None and header.attributes & CODEC_MASK != settings.codec


def needs_max_timestamp(view: memoryview, settings: TopicSettings) -> bool:
    """Whether only the records tell a batch's largest timestamp. Where the time is the broker's, nobody
    asks."""
    return not settings.rules.is_append_time and has_unset_max_timestamp(view)


def is_slow(view: memoryview, settings: TopicSettings) -> bool:
    """Whether to look into a batch, or to recompress it, holds the loop for longer than it costs to have it
    done elsewhere. What is damaged is not slow: its refusal is quick. Unpacks no more than is quick
    itself."""
    is_looked_into = settings.is_compacted or needs_max_timestamp(view, settings)
    if len(view) < HEADER_BYTES or not (is_looked_into or settings.codec is not None):
        return False
    header = BatchHeader(view)
    is_recompressed = has_new_codec(header, settings)
    if not (is_recompressed or is_looked_into):
        return False
    if is_looked_into and header.record_count > CHUNK_RECORDS:
        return True
    inline_bytes_max = RECOMPRESSED_INLINE_BYTES_MAX if is_recompressed else UNPACKED_INLINE_BYTES_MAX
    if header.codec == Codec.NONE:
        return is_recompressed and len(view) > inline_bytes_max
    return len(view) > inline_bytes_max or (
        is_intact(view, header) and _comes_to_more(view, header, inline_bytes_max)
    )


def _comes_to_more(view: memoryview, header: BatchHeader, bytes_max: int) -> bool:
    from millrace.protocol.compression import RecordsTooLarge, unpack

    try:
        unpack(header.codec, view[HEADER_BYTES:], bytes_max)
    except RecordsTooLarge:
        return True
    except WireError:
        return False
    return False


def rewrite_batch(
    view: memoryview,
    header: BatchHeader,
    settings: TopicSettings,
    now_ms: int,
    *,
    is_recoded: bool = False,
    is_walked: bool = False,
) -> tuple[memoryview, BatchHeader]:
    """The batch as the topic has it. `is_walked`: its keys and times were seen to (validation.py);
    `is_recoded`: its codec, too. Raises KafkaError for records that it may not have or that cannot be
    read."""
    data: bytes | memoryview = view
    is_walked = is_walked or is_recoded
    if not is_walked and needs_max_timestamp(view, settings):
        view, header = _with_max_timestamp(view, header, settings, now_ms)
        data = view
    if not is_recoded and ((settings.is_compacted and not is_walked) or has_new_codec(header, settings)):
        data = _recode(view, header, settings, is_walked)
    if settings.rules.is_append_time:
        data = with_log_append_time(memoryview(data), now_ms)
    if len(data) > settings.rules.batch_bytes_max:
        raise too_large_as_rewritten(f"batch of {len(data)} bytes", settings)
    if data is view:
        return view, header
    return memoryview(data), BatchHeader(data)


def too_large_as_rewritten(what: str, settings: TopicSettings) -> KafkaError:
    text = f"{what} as rewritten, above max.message.bytes={settings.rules.batch_bytes_max}"
    return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)


def _recode(
    view: memoryview, header: BatchHeader, settings: TopicSettings, is_walked: bool
) -> bytes | memoryview:
    # Here, since most brokers never look into a batch, and codecs are a library's to import.
    from millrace.protocol.compression import recompress
    from millrace.protocol.records import indexes_without_key

    try:
        if settings.is_compacted and not is_walked:
            demand_keys(indexes_without_key(view))
        if settings.codec is not None and has_new_codec(header, settings):
            return recompress(view, settings.codec, settings.codec_level)
    except WireError as error:
        raise unreadable(error) from None
    return view


def _with_max_timestamp(
    view: memoryview, header: BatchHeader, settings: TopicSettings, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    from millrace.protocol.records import iter_times

    span = TimeSpan()
    try:
        span.add(iter_times(view))
    except WireError as error:
        raise unreadable(error) from None
    return told_max_timestamp(view, header, span, settings, now_ms)


class TimeSpan:
    """The earliest and the latest timestamp of records that have one; both NO_TIMESTAMP while none was
    added."""

    __slots__ = ("earliest", "latest")

    def __init__(self) -> None:
        self.earliest = NO_TIMESTAMP
        self.latest = NO_TIMESTAMP

    def add(self, times: Iterable[tuple[int, int]]) -> None:
        """`times`: (offset, timestamp)."""
        known = [timestamp for _, timestamp in times if timestamp != NO_TIMESTAMP]
        if not known:
            return
        earliest, latest = min(known), max(known)
        is_first = self.earliest == NO_TIMESTAMP
        self.earliest = earliest if is_first else min(self.earliest, earliest)
        self.latest = latest if is_first else max(self.latest, latest)


def told_max_timestamp(
    view: memoryview, header: BatchHeader, span: TimeSpan, settings: TopicSettings, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """A copy of the batch with the largest timestamp that Kafka computes: at least -1, also for records
    before 1970. Raises KafkaError when the topic does not take one of the times."""
    _judge_span(header, span.earliest, span.latest, settings, now_ms)
    return with_max_timestamp(view, header, max(span.latest, NO_TIMESTAMP))


def guessed_max_timestamp(
    view: memoryview, header: BatchHeader, settings: TopicSettings, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """As `told_max_timestamp`, of records that come to more than may be unpacked: the best guess of their
    header. Never 0 for a field that was left out, which would make the records as old as the epoch."""
    base = header.base_timestamp
    guess = header.max_timestamp if header.max_timestamp > max(base, 0) else max(base, NO_TIMESTAMP)
    _judge_span(header, base, guess, settings, now_ms)
    return with_max_timestamp(view, header, guess)


def _judge_span(
    header: BatchHeader, earliest: int, latest: int, settings: TopicSettings, now_ms: int
) -> None:
    judged = copy(header)
    judged.base_timestamp, judged.max_timestamp = earliest, latest
    check_timestamps(judged, settings.rules, now_ms)


def with_max_timestamp(
    view: memoryview, header: BatchHeader, max_timestamp: int
) -> tuple[memoryview, BatchHeader]:
    told = memoryview(pack_batch(header, view[HEADER_BYTES:], header.attributes, max_timestamp))
    return told, BatchHeader(told)


def unreadable(error: WireError) -> KafkaError:
    """Not CORRUPT_MESSAGE, which producers retry: the batch came as it was sent."""
    return KafkaError(ErrorCode.INVALID_RECORD, f"records cannot be read: {error}")


def demand_keys(keyless: list[int]) -> None:
    """`keyless`: which records have none. Raises InvalidRecords where there are any."""
    if keyless:
        message = "compacted topics take no record without a key"
        raise InvalidRecords([(index, message) for index in keyless], message)
