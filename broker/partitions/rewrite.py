"""The few topics whose batches are not appended as they came: compacted, recompressed, stamped with the broker's time. Pure.

Kafka's order: keys are demanded, then the codec is the topic's, then the time is the broker's, then the size is checked again.
"""

from __future__ import annotations

from millrace.broker.partitions.settings import TopicSettings
from millrace.protocol.batches import CODEC_MASK, BatchHeader, with_log_append_time
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError, WireError

INDEXES_TOLD_MAX = 100  # record errors in one answer


class InvalidRecords(KafkaError):
    """Some records of a batch are to blame: their indexes, and why."""

    def __init__(self, indexes: list[int], message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)
        self.indexes = indexes[:INDEXES_TOLD_MAX]


def rewrite_batch(
    view: memoryview, header: BatchHeader, settings: TopicSettings, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """The batch as the topic has it. Raises KafkaError for records that it may not have or that cannot be read."""
    try:
        if settings.is_compacted:
            _demand_keys(view)
        data: bytes | memoryview = view
        if settings.codec is not None and header.attributes & CODEC_MASK != settings.codec:
            # Here, since most brokers never recompress, and codecs are a library's to import.
            from millrace.protocol.compression import recompress

            data = recompress(view, settings.codec, settings.codec_level)
    except WireError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"records cannot be read: {error}") from None
    if settings.rules.is_append_time:
        data = with_log_append_time(memoryview(data), now_ms)
    if len(data) > settings.rules.batch_bytes_max:
        text = f"batch of {len(data)} bytes as rewritten, above max.message.bytes={settings.rules.batch_bytes_max}"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
    if data is view:
        return view, header
    return memoryview(data), BatchHeader(data)


def _demand_keys(view: memoryview) -> None:
    from millrace.protocol.records import indexes_without_key

    indexes = indexes_without_key(view)
    if indexes:
        raise InvalidRecords(indexes, "compacted topics take no record without a key")
