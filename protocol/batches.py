"""Record batch v2: the header read in one go, judged as Kafka judges it, and rewritten while a batch is
copied.

    0  base offset i64 | 8  batch length i32 | 12 leader epoch i32        outside the checksum: the broker's
                                                                          to write
    16 magic i8 = 2    | 17 CRC-32C u32, over everything from 21 on
    21 attributes i16  | 23 last offset delta i32 | 27 base timestamp i64 | 35 max timestamp i64
    43 producer id i64 | 51 producer epoch i16    | 53 base sequence i32  | 57 record count i32 | 61 records

    attributes: bits 0-2 codec, 3 timestamps are the append time, 4 transactional, 5 control, 6 delete horizon

Not here: records (records.py), codecs (compression.py), a batch made of records (batch_build.py), sequences
against a producer's state (the partition's). Batches of formats v0 and v1 are refused everywhere; no client
of a 4.x broker writes them or asks for them.

Kept true: a batch's bytes are never changed in place (a frame is immutable and may be shared); what a
checksum covers is changed only together with the checksum. This is hot code: concrete types, no closures,
refusals told apart off the path.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from millrace.protocol.crc32c import crc32c
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError, WireError
from millrace.protocol.primitives import Buffer

HEADER_BYTES: Final = 61
CRC_START: Final = 21  # the first byte that the checksum covers
LENGTH_OVERHEAD_BYTES: Final = 12  # base offset and the length itself, which `batch_length` leaves out
RECORD_BYTES_MIN: Final = 7  # length, attributes, two deltas, two lengths and a count, one byte each
PRODUCE_VERSION_WITH_ZSTD: Final = 7

CODEC_MASK: Final = 0x07
APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

NO_TIMESTAMP: Final = -1
INT64_MAX: Final = (1 << 63) - 1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_TO_CRC = struct.Struct(">qiibI")
FROM_CRC = struct.Struct(">hiqqqhii")  # attributes to record count
_LENGTH_AT_8 = struct.Struct(">i")
_TIMES_AT_27 = struct.Struct(">qq")


class Codec(IntEnum):
    """What the records of a batch are compressed with: bits 0-2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Bit 3 of a batch's attributes: whose clock the timestamps are of."""

    CREATE = 0
    APPEND = 1


class BatchHeader:
    """The header of the batch that starts at `position` of `view`, as values; keeps no view."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "batch_length",
        "crc",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
    )

    base_offset: int
    batch_length: int  # bytes after this field: all but the first 12
    leader_epoch: int
    magic: int
    crc: int  # unsigned
    attributes: int
    last_offset_delta: int  # also the last sequence's; compaction leaves it when records go
    base_timestamp: int  # the first record's; the delete horizon when that bit is set
    max_timestamp: int  # or the time of the append
    producer_id: int  # -1 for none
    producer_epoch: int
    base_sequence: int  # -1 for none
    record_count: int  # at most last_offset_delta + 1

    def __init__(self, view: Buffer, position: int = 0) -> None:
        if len(view) - position < HEADER_BYTES:
            raise WireError(f"batch header cut off after {len(view) - position} bytes")
        (
            self.base_offset,
            self.batch_length,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = _HEADER.unpack_from(view, position)

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LENGTH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, which wraps from 2^31 - 1 to 0; -1 when the batch has none."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF

    @property
    def codec(self) -> int:
        """A `Codec`, or a number from 5 to 7 that names none."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.APPEND if self.attributes & APPEND_TIME_BIT else TimestampType.CREATE

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    def __repr__(self) -> str:
        return f"BatchHeader({', '.join(f'{name}={getattr(self, name)}' for name in self.__slots__)})"


@dataclass(frozen=True, slots=True)
class ProduceRules:
    """What a topic's configuration says of the batches that clients send it. Built once per configuration,
    not per batch."""

    batch_bytes_max: int = 1_048_588  # max.message.bytes
    segment_bytes: int = 1 << 30  # segment.bytes
    timestamp_before_max_ms: int = INT64_MAX  # message.timestamp.before.max.ms
    timestamp_after_max_ms: int = 3_600_000  # message.timestamp.after.max.ms
    is_append_time: bool = False  # message.timestamp.type=LogAppendTime: what clients wrote is not judged


def check_produced_batch(view: memoryview, rules: ProduceRules, now_ms: int, api_version: int) -> BatchHeader:
    """The header of the one batch that a client sent for a partition, or a KafkaError.

    The checks, their order and their codes are Kafka's, so that a batch with two faults is told of the same
    one. Records are not walked: what Kafka asks of each of them is asked of the header's count, timestamps
    and length. Timestamps of a header that cannot be right are not judged: whoever walks the records does.
    Sequences and epochs against the producer's state come later; a batch's base offset and leader epoch are
    the caller's to write.
    """
    if len(view) < HEADER_BYTES:
        raise _framing_refusal(view, api_version)
    header = BatchHeader(view)
    attributes = header.attributes
    codec = attributes & CODEC_MASK
    size_bytes = header.batch_length + LENGTH_OVERHEAD_BYTES
    if size_bytes != len(view) or header.magic != 2:
        raise _framing_refusal(view, api_version)
    if codec == Codec.ZSTD and api_version < PRODUCE_VERSION_WITH_ZSTD:
        raise _zstd_refusal(api_version)
    if header.base_offset != 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"base offset {header.base_offset} in a produced batch, not 0"
        )
    if size_bytes > rules.batch_bytes_max:
        text = f"batch of {size_bytes} bytes, above max.message.bytes={rules.batch_bytes_max}"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
    if crc32c(view[CRC_START:]) != header.crc:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"checksum of a batch of {size_bytes} bytes is not {header.crc:#010x}"
        )
    count = header.record_count
    if count <= 0 or header.last_offset_delta + 1 != count or attributes & CONTROL_BIT:
        raise _contents_refusal(header)
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _contents_refusal(header)
    if codec > Codec.ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {codec}")
    if count * RECORD_BYTES_MIN > size_bytes - HEADER_BYTES and not _may_hold(view, header):
        raise _contents_refusal(header)
    is_told = 0 <= header.base_timestamp <= header.max_timestamp  # else has_unset_max_timestamp
    if attributes & APPEND_TIME_BIT or (is_told and not rules.is_append_time):
        check_timestamps(header, rules, now_ms)
    if size_bytes > rules.segment_bytes:
        text = f"batch of {size_bytes} bytes, above segment.bytes={rules.segment_bytes}"
        raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, text)
    return header


def _may_hold(view: memoryview, header: BatchHeader) -> bool:
    """Whether as many records as the header counts may stand in fewer bytes than they have uncompressed.
    Records that come to seven times less than their smallest size are rare: nobody else pays for the look at
    how their frames are made."""
    if header.codec == Codec.NONE:
        return False
    from millrace.protocol.codec_bounds import unpacked_bytes_max

    try:
        bytes_max = unpacked_bytes_max(header.codec, view[HEADER_BYTES:])
    except WireError:
        return False
    return header.record_count * RECORD_BYTES_MIN <= bytes_max


def has_unset_max_timestamp(view: memoryview) -> bool:
    """Whether a batch's header cannot tell its largest timestamp: some clients leave the field at -1, others
    at 0 where no record has a timestamp (base -1). Kafka's brokers always write it themselves, from the
    records. False for what is no batch."""
    if len(view) < HEADER_BYTES:
        return False
    base, largest = _TIMES_AT_27.unpack_from(view, 27)
    return not 0 <= base <= largest


def check_timestamps(header: BatchHeader, rules: ProduceRules, now_ms: int) -> None:
    """Kafka judges every record; the first one's timestamp and the largest are what a header tells. Raises
    KafkaError."""
    before, after = rules.timestamp_before_max_ms, rules.timestamp_after_max_ms
    if not rules.is_append_time:
        for timestamp in (header.base_timestamp, header.max_timestamp):
            if timestamp != NO_TIMESTAMP and (now_ms - timestamp > before or timestamp - now_ms > after):
                text = f"timestamp {timestamp} is outside [{now_ms - before}, {now_ms + after}]"
                raise KafkaError(ErrorCode.INVALID_TIMESTAMP, text)
    if header.attributes & APPEND_TIME_BIT:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "a producer may not mark its batch as LogAppendTime")


def _framing_refusal(view: memoryview, api_version: int) -> KafkaError:
    """Why `view` is not exactly one batch of magic 2. Kafka finds batches by length first and looks at the
    magic after."""
    size = len(view)
    if size < 17:
        return KafkaError(ErrorCode.INVALID_RECORD, f"no record batch in {size} bytes")
    batch_length: int = _LENGTH_AT_8.unpack_from(view, 8)[0]
    magic = view[16]
    if batch_length < 14 or magic > 2:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch length {batch_length}, magic {magic}")
    if batch_length + LENGTH_OVERHEAD_BYTES > size:
        return KafkaError(
            ErrorCode.INVALID_RECORD, f"batch of {batch_length + LENGTH_OVERHEAD_BYTES} bytes in {size}"
        )
    if magic != 2:
        return KafkaError(ErrorCode.INVALID_RECORD, f"record batch of magic {magic}, not 2")
    if batch_length + LENGTH_OVERHEAD_BYTES == size:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch of {size} bytes, less than its header")
    if (
        batch_length > CRC_START
        and view[22] & CODEC_MASK == Codec.ZSTD
        and api_version < PRODUCE_VERSION_WITH_ZSTD
    ):
        return _zstd_refusal(api_version)
    rest = size - batch_length - LENGTH_OVERHEAD_BYTES
    return KafkaError(
        ErrorCode.INVALID_RECORD, f"{rest} bytes after the one batch that a partition may be sent"
    )


def _zstd_refusal(api_version: int) -> KafkaError:
    return KafkaError(
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd in Produce version {api_version}, below 7"
    )


def _contents_refusal(header: BatchHeader) -> KafkaError:
    """Why the header of a sound batch is not one that a client may send."""
    count, last = header.record_count, header.last_offset_delta
    if last < 0:
        text = f"invalid offset range [0, {last}]"
    elif count <= 0:
        text = f"invalid record count {count}"
    elif last + 1 != count:
        text = f"offset range [0, {last}] and record count {count} differ"
    elif header.attributes & CONTROL_BIT:
        text = "clients may not write control records"
    elif header.producer_id >= 0 and header.base_sequence < 0:
        text = f"invalid sequence {header.base_sequence} of producer id {header.producer_id}"
    else:
        text = f"{count} records cannot stand in {header.size_bytes - HEADER_BYTES} bytes"
    return KafkaError(ErrorCode.INVALID_RECORD, text)


def restamp_head(base_offset: int, batch_length: int, leader_epoch: int, crc: int) -> bytes:
    """The first CRC_START bytes of a batch, written anew: an append is (this, view[CRC_START:]), and the
    checksum stays as it is."""
    return _TO_CRC.pack(base_offset, batch_length, leader_epoch, 2, crc)


def with_log_append_time(view: memoryview, timestamp: int) -> bytes:
    """A copy of a batch whose records all have `timestamp`, as the broker's clock said at the append."""
    header = BatchHeader(view)
    return pack_batch(header, view[HEADER_BYTES:], header.attributes | APPEND_TIME_BIT, timestamp)


def pack_batch(header: BatchHeader, payload: Buffer, attributes: int, max_timestamp: int) -> bytes:
    """A copy of a batch with other records, attributes and largest timestamp; all else is the header's."""
    body = FROM_CRC.pack(
        attributes,
        header.last_offset_delta,
        header.base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )
    return seal_batch(header.base_offset, header.leader_epoch, body, payload)


def seal_batch(base_offset: int, leader_epoch: int, body: bytes, payload: Buffer) -> bytes:
    """Length, magic and checksum put before the rest of a header (`body`, bytes 21 to 60) and its records."""
    length = HEADER_BYTES - LENGTH_OVERHEAD_BYTES + len(payload)
    checksum = crc32c(payload, crc32c(body))
    return b"".join((_TO_CRC.pack(base_offset, length, leader_epoch, 2, checksum), body, payload))


def is_intact(view: memoryview, header: BatchHeader) -> bool:
    """Whether `view` is the whole of the batch that `header` was read from, with the right checksum."""
    return header.size_bytes == len(view) and header.magic == 2 and crc32c(view[CRC_START:]) == header.crc


def iter_headers(view: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch in a buffer of several; a batch cut off at the end is left out.

    Raises WireError where no batch can start. Checksums are not looked at.
    """
    end = len(view)
    while end - position >= HEADER_BYTES:
        header = BatchHeader(view, position)
        if header.magic != 2 or header.batch_length < HEADER_BYTES - LENGTH_OVERHEAD_BYTES:
            raise WireError(f"no batch at {position}: magic {header.magic}, length {header.batch_length}")
        if header.size_bytes > end - position:
            return
        yield position, header
        position += header.size_bytes
