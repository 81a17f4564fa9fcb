"""Produce by hand: the request's decoder and the response's encoder, for the path that every record takes.

The declaration is produce.py; both sides here give what the compiled codec gives, for every version and for
malformed bytes too, and a test holds them to it. What is rare (errors with text, leaders told, unknown tags)
is left to the compiled codec or to small functions off the path. Layouts by version:

    request     3-8 plain, 9-12 compact with names, 13 compact with ids
    response    a partition is index, error, base offset, append time, from 5 on the log's start, from 8 on
                what is wrong with records (here: nothing), from 9 on tags (here: none)

Kept true: one pass, no copy of record bytes (views of the frame), every length compared with what remains,
and the elements of a request bounded in all (`left`; one element alone is not counted, here as in the
compiled codec).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import TypeAlias

from millrace.protocol.declare import NO_UUID
from millrace.protocol.errors import WireError
from millrace.protocol.messages.produce import (
    NO_LEADER,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from millrace.protocol.primitives import (
    ELEMENTS_AT_ONCE,
    ONE_BYTE,
    READ_ERRORS,
    Buffer,
    check_count,
    read_compact_count,
    read_compact_string,
    read_string,
    read_uvarint,
    skip_tags,
    spend,
    string_bytes,
    uuid_field,
    uvarint,
)

DecodeRequest: TypeAlias = Callable[[Buffer, int], ProduceRequest]
EncodeResponse: TypeAlias = Callable[[int, ProduceResponse], list[Buffer]]

_INT = Struct(">i").unpack_from
_ACKS_TIMEOUT_COUNT = Struct(">hii").unpack_from
_ACKS_TIMEOUT = Struct(">hi").unpack_from
_INDEX_LENGTH = Struct(">ii").unpack_from
_INDEX_BYTE = Struct(">iB").unpack_from


def request_decoder(version: int) -> DecodeRequest:
    """The decoder of one version, 3 to 13."""
    return decode_plain if version < 9 else partial(decode_compact, version >= 13)


def decode_plain(frame: Buffer, pos: int) -> ProduceRequest:
    """Versions 3 to 8. Raises WireError for malformed bytes, TooManyElements beyond ELEMENTS_AT_ONCE."""
    view = frame if type(frame) is memoryview else memoryview(frame)
    size = len(view)
    try:
        if view[pos] & 0x80:  # a negative length
            transactional_id = None
            pos += 2
        else:
            transactional_id, pos = read_string(view, pos, size)
        acks, timeout_ms, topic_count = _ACKS_TIMEOUT_COUNT(view, pos)
        pos += 10
        check_count(topic_count, 6, size - pos)
        left = [ELEMENTS_AT_ONCE]
        if topic_count > 1:
            spend(left, topic_count)
        topics = []
        for _ in range(topic_count):
            name, pos = read_string(view, pos, size)
            (count,) = _INT(view, pos)
            pos += 4
            if count != 1:
                check_count(count, 8, size - pos)
                spend(left, count)
            partitions = []
            for _ in range(count):
                index, length = _INDEX_LENGTH(view, pos)
                start = pos = pos + 8
                if length < 0:
                    partitions.append(PartitionProduceData(index, None))
                    continue
                pos += length
                if pos > size:
                    raise WireError("records beyond the end")
                partitions.append(PartitionProduceData(index, view[start:pos]))
            topics.append(TopicProduceData(name, NO_UUID, partitions))
        return ProduceRequest(transactional_id, acks, timeout_ms, topics)
    except READ_ERRORS as error:
        raise WireError(f"ProduceRequest: {error}") from error


def decode_compact(by_id: bool, frame: Buffer, pos: int) -> ProduceRequest:
    """Versions 9 and up. Raises as `decode_plain`."""
    view = frame if type(frame) is memoryview else memoryview(frame)
    size = len(view)
    try:
        transactional_id = None
        length, start = (0, pos + 1) if view[pos] == 0 else read_uvarint(view, pos)
        if length:
            transactional_id, start = read_compact_string(view, pos, size)
        pos = start
        acks, timeout_ms = _ACKS_TIMEOUT(view, pos)
        topic_count, pos = read_compact_count(view, pos + 6, 3, size)
        left = [ELEMENTS_AT_ONCE]
        if topic_count > 1:
            spend(left, topic_count)
        topics = []
        for _ in range(topic_count):
            if by_id:
                name = ""
                topic_id = bytes(view[pos : pos + 16])
                pos += 16
            else:
                topic_id = NO_UUID
                name, pos = read_compact_string(view, pos, size)
            count = view[pos] - 1
            pos += 1
            if count != 1:  # the common case needs no look at the bounds
                count, pos = read_compact_count(view, pos - 1, 6, size)
                spend(left, count)
            partitions = []
            for _ in range(count):
                index, length = _INDEX_BYTE(view, pos)
                pos += 5
                if length > 127:
                    # Two bytes hold lengths below 16 KiB, three below 2 MiB; the rest is read in the general
                    # way.
                    second = view[pos]
                    if second < 128:
                        length += (second << 7) - 128
                        pos += 1
                    else:
                        length, pos = read_uvarint(view, pos - 1)
                if length:
                    start = pos
                    pos += length - 1
                    if pos > size:
                        raise WireError("records beyond the end")
                    partitions.append(PartitionProduceData(index, view[start:pos]))
                else:
                    partitions.append(PartitionProduceData(index, None))
                pos = skip_tags(view, pos, size, left) if view[pos] else pos + 1
            pos = skip_tags(view, pos, size, left) if view[pos] else pos + 1
            topics.append(TopicProduceData(name, topic_id, partitions))
        if view[pos]:
            skip_tags(view, pos, size)
        return ProduceRequest(transactional_id, acks, timeout_ms, topics)
    except READ_ERRORS as error:
        raise WireError(f"ProduceRequest: {error}") from error


_FRAME = Struct(">ii")
_FRAME_TAGGED = Struct(">iix")
_COUNT = Struct(">i").pack
_NAME_LENGTH = Struct(">h").pack
_PARTITION_V3 = Struct(">ihqq").pack
_PARTITION = Struct(">ihqqq").pack


def response_encoder(version: int, general: EncodeResponse) -> EncodeResponse:
    """The encoder of one version, 3 to 13. `general` is the compiled one, for responses that say more than
    offsets."""
    if version >= 9:
        return partial(encode_compact, general, version >= 13)
    return partial(encode_plain, general, version < 5, b"" if version < 8 else b"\0\0\0\0\xff\xff")


def encode_plain(
    general: EncodeResponse, is_short: bool, faultless: bytes, correlation_id: int, response: ProduceResponse
) -> list[Buffer]:
    """Versions 3 to 8. `faultless` is what follows the offsets where no record is to blame."""
    parts = [b"", _COUNT(len(response.responses))]
    for topic in response.responses:
        raw = string_bytes(topic.name)
        parts += (_NAME_LENGTH(len(raw)), raw, _COUNT(len(topic.partition_responses)))
        for p in topic.partition_responses:
            if p.record_errors or p.error_message is not None or p.current_leader is not NO_LEADER:
                return general(correlation_id, response)
            if is_short:
                parts.append(_PARTITION_V3(p.index, p.error_code, p.base_offset, p.log_append_time_ms))
            else:
                parts.append(
                    _PARTITION(p.index, p.error_code, p.base_offset, p.log_append_time_ms, p.log_start_offset)
                )
                parts.append(faultless)
    if response.node_endpoints:
        return general(correlation_id, response)
    parts.append(_COUNT(response.throttle_time_ms))
    parts[0] = _FRAME.pack(sum(map(len, parts)) + 4, correlation_id)
    return [b"".join(parts)]


_FAULTLESS = Struct(">ihqqqBBB").pack  # no record is to blame (compact 1), no message (compact 0), no tags
_THROTTLE_TAGS = Struct(">ix").pack


def encode_compact(
    general: EncodeResponse, by_id: bool, correlation_id: int, response: ProduceResponse
) -> list[Buffer]:
    """Versions 9 and up."""
    if response.node_endpoints:
        return general(correlation_id, response)
    count = len(response.responses) + 1
    parts = [b"", ONE_BYTE[count] if count < 128 else uvarint(count)]
    for topic in response.responses:
        if by_id:
            parts.append(uuid_field(topic.topic_id))
        else:
            raw = string_bytes(topic.name)
            count = len(raw) + 1
            parts += (ONE_BYTE[count] if count < 128 else uvarint(count), raw)
        count = len(topic.partition_responses) + 1
        parts.append(ONE_BYTE[count] if count < 128 else uvarint(count))
        for p in topic.partition_responses:
            if p.record_errors or p.error_message is not None or p.current_leader is not NO_LEADER:
                return general(correlation_id, response)
            parts.append(
                _FAULTLESS(
                    p.index, p.error_code, p.base_offset, p.log_append_time_ms, p.log_start_offset, 1, 0, 0
                )
            )
        parts.append(b"\0")
    parts.append(_THROTTLE_TAGS(response.throttle_time_ms))
    parts[0] = _FRAME_TAGGED.pack(sum(map(len, parts)) + 5, correlation_id)
    return [b"".join(parts)]
