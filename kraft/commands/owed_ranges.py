"""Decides what becomes of ranges that an earlier owner's write-ahead log owes: that a stream is sealed with
one, that its node commits it, that it is given up. Pure.

Not here: the table (kraft/tables/owed_ranges.py), whether a log may be given up (partitions.py, wals.py).
Kept true: what is owed was durable in the node's log when the stream was sealed; a range is committed by the
node that owes it alone, or by whoever recovers its log in its name, from its start on and not beyond its end.
"""

from __future__ import annotations

from typing import Any

from millrace.kraft.commands.decision import Decision, check_broker
from millrace.kraft.commands.streams import refusal
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.owed_ranges import (
    OWED_RANGES_MAX,
    OwedRange,
    owed_range_record,
)
from millrace.kraft.tables.streams import StreamState, stream_record
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.seal_streams import (
    SealedStream,
    SealStreamsRequest,
    SealStreamsResponse,
    StreamSeal,
)
from millrace.protocol.stream_records import LoseOwedRangeRecord, TrimStreamRecord
from millrace.s3stream.ids import NO_WAL, StreamRole


def decide_seal_streams(image: MetadataImage, request: SealStreamsRequest, now_ms: int) -> Decision:
    """A stream that the same owner has sealed, or closed, before stays as it is: no error; nor, as long as
    something of it is owed, where another has it open by now. Raises KafkaError UNSUPPORTED_VERSION below the
    level at which nodes know owed ranges."""
    check_broker(image, request.node_id, request.broker_epoch)
    if not image.features.has_owed_ranges:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "streams are sealed from millrace.version 3 on")
    wal = image.wals.active(request.node_id)
    wal_id = NO_WAL if wal is None else wal.wal_id
    decision = Decision(SealStreamsResponse())
    for asked in {asked.stream_id: asked for asked in request.streams}.values():
        stream = image.streams.get(asked.stream_id)
        code = refusal(stream, request.node_id, asked.epoch)
        if stream is not None and not code and stream.is_open:
            code = _refusal_of_seal(image, stream, asked)
            decision.records += [] if code else sealed_records(stream, asked, wal_id, now_ms)
        elif code and _was_sealed(image, asked, request.node_id):
            code = 0
        decision.response.streams.append(SealedStream(asked.stream_id, code))
    return decision


def _was_sealed(image: MetadataImage, asked: StreamSeal, node_id: int) -> bool:
    """By this very seal, whose answer did not arrive; the next owner may have opened the stream since."""
    owed = image.streams.owed.by(asked.stream_id, node_id)
    return owed is not None and (owed.epoch, owed.end) == (asked.epoch, asked.end_offset)


def _refusal_of_seal(image: MetadataImage, stream: StreamState, asked: StreamSeal) -> int:
    if asked.end_offset < max(stream.end, asked.start_offset):
        return int(ErrorCode.OFFSET_OUT_OF_RANGE)
    is_owed = asked.end_offset > stream.end
    if is_owed and len(image.streams.owed.of_stream(stream.stream_id)) >= OWED_RANGES_MAX:
        return int(ErrorCode.INVALID_RECORD_STATE)
    return 0


def sealed_records(stream: StreamState, asked: StreamSeal, wal_id: bytes, now_ms: int) -> list[Any]:
    """The stream closed at its true end, with what of it is not committed owed by its owner; and trimmed,
    which may be in that."""
    end = asked.end_offset
    records: list[Any] = []
    if end > stream.end:
        owed = OwedRange(stream.stream_id, stream.end, end, stream.node_id, stream.epoch, wal_id)
        records.append(owed_range_record(owed))
    records.append(stream_record(stream._replace(is_open=False, end=end)))
    if asked.start_offset > stream.start:
        records.append(TrimStreamRecord(stream.stream_id, asked.start_offset, now_ms))
    return records


def committed_part(owed: OwedRange, start: int, end: int) -> tuple[int, int]:
    """What a commit of [start, end) by the node that owes this is a commit of: from the owed start on. Raises
    KafkaError OFFSET_OUT_OF_RANGE where it would leave a hole, or goes beyond what was sealed."""
    if start > owed.start or end > owed.end:
        text = (
            f"range [{start}, {end}) of stream {owed.stream_id}, of which node {owed.node_id} owes "
            f"[{owed.start}, {owed.end})"
        )
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
    return owed.start, end


def lost_record(owed: OwedRange) -> LoseOwedRangeRecord:
    """The record that gives it up."""
    return LoseOwedRangeRecord(owed.stream_id, owed.node_id)


def owed_of_partition(image: MetadataImage, topic_id: bytes, index: int) -> list[OwedRange]:
    """Of all streams of the partition, in order of roles and offsets."""
    return [
        owed
        for stream in image.streams.of_partition(topic_id, index)
        for owed in image.streams.owed.of_stream(stream.stream_id)
    ]


def is_of_data(image: MetadataImage, owed: OwedRange) -> bool:
    """Whether its offsets are the partition's own."""
    return image.streams.by_id[owed.stream_id].role is StreamRole.DATA
