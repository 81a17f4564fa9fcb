"""Fetch by hand: the request's decoder and the response's encoder, for the path that every record takes.

The declaration is fetch.py; both sides here give what the compiled codec gives, for malformed bytes too, and
a test holds them to it. Requests with tags (replicas of the metadata log) and responses that tell of
divergence, leaders or snapshots are left to the compiled codec, and so are requests up to version 11, where
nothing was to be won. Layouts by version:

    request     12 compact with names, 13 and up compact with ids; up to 14 the replica's id leads
    response    4-11 plain, 12 compact with names, 13 and up compact with ids

Kept true: the record bytes of a response are never copied, but for pieces so small that a buffer of their own
costs more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from struct import Struct, unpack_from
from typing import TypeAlias

from millrace.protocol.errors import WireError
from millrace.protocol.frame import JOINED_BYTES_MAX
from millrace.protocol.messages.fetch import (
    NO_DIVERGENCE,
    NO_LEADER,
    NO_SNAPSHOT,
    NOT_A_REPLICA,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from millrace.protocol.primitives import (
    ELEMENTS_AT_ONCE,
    READ_ERRORS,
    Buffer,
    read_compact_count,
    read_compact_string,
    skip_tags,
    spend,
    string_bytes,
    uuid_field,
    uvarint,
)

ONE_BUFFER = (bytes, bytearray, memoryview)

DecodeRequest: TypeAlias = Callable[[Buffer, int], FetchRequest]
EncodeResponse: TypeAlias = Callable[[int, FetchResponse], list[Buffer]]

# Replica, wait, least and most bytes, isolation, session id and epoch, and the count of topics where it takes
# one byte.
_HEAD_V12 = Struct(">iiiibiiB").unpack_from
_HEAD_V15 = Struct(">iiibiiB").unpack_from  # the replica's id has gone into a tag
_PARTITION_V12 = Struct(">iiqiqiB")


def request_decoder(version: int, general: DecodeRequest) -> DecodeRequest:
    """The decoder of one version, 4 to 18. `general` is the compiled one."""
    return general if version < 12 else partial(decode_compact, version, general)


def decode_compact(version: int, general: DecodeRequest, frame: Buffer, start: int) -> FetchRequest:
    """Versions 12 and up. Raises WireError for malformed bytes, TooManyElements beyond ELEMENTS_AT_ONCE."""
    view = frame if type(frame) is memoryview else memoryview(frame)
    size = len(view)
    pos = start
    try:
        if version >= 15:
            replica_id = -1
            max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, count = _HEAD_V15(
                view, pos
            )
            pos += 22
        else:
            replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, count = (
                _HEAD_V12(view, pos)
            )
            pos += 26
        left = [ELEMENTS_AT_ONCE]
        if count != 2:  # one topic, one partition: nothing to check
            count, pos = read_compact_count(view, pos - 1, 3, size)
            spend(left, count)
            count += 1
        topics = []
        for _ in range(count - 1):
            if version >= 13:
                topic = FetchTopic("", bytes(view[pos : pos + 16]))
                pos += 16
            else:
                name, pos = read_compact_string(view, pos, size)
                topic = FetchTopic(name)
            count = view[pos]
            pos += 1
            if count == 2:
                rows: Iterable[tuple[int, ...]] = (_PARTITION_V12.unpack_from(view, pos),)
                pos += 33
            else:
                count, pos = read_compact_count(view, pos - 1, 33, size)
                spend(left, count)
                rows = _PARTITION_V12.iter_unpack(view[pos : pos + 33 * count])
                pos += 33 * count
            for index, epoch, offset, last_epoch, log_start, most, tags in rows:
                if tags:
                    return general(frame, start)
                topic.partitions.append(FetchPartition(index, epoch, offset, last_epoch, log_start, most))
            if view[pos]:
                return general(frame, start)
            pos += 1
            topics.append(topic)
        forgotten: list[ForgottenTopic] = []
        if view[pos] == 1:
            pos += 1
        else:
            forgotten, pos = _forgotten(version, view, pos, size, left)
        rack_id, pos = read_compact_string(view, pos, size)
        if view[pos]:
            return general(frame, start)
    except READ_ERRORS as error:
        raise WireError(f"FetchRequest: {error}") from error
    return FetchRequest(
        None, replica_id, NOT_A_REPLICA, max_wait_ms, min_bytes, max_bytes, isolation, session_id,
        session_epoch,
        topics, forgotten, rack_id,
    )  # fmt: skip


def _forgotten(
    version: int, view: memoryview, pos: int, size: int, left: list[int]
) -> tuple[list[ForgottenTopic], int]:
    """The partitions that leave a session, of a compact version."""
    topic_count, pos = read_compact_count(view, pos, 3, size)
    spend(left, topic_count)
    forgotten = []
    for _ in range(topic_count):
        if version >= 13:
            topic = ForgottenTopic("", bytes(view[pos : pos + 16]))
            pos += 16
        else:
            name, pos = read_compact_string(view, pos, size)
            topic = ForgottenTopic(name)
        count, pos = read_compact_count(view, pos, 4, size)
        spend(left, count >> 3)
        topic.partitions += unpack_from(f">{count}i", view, pos)
        pos += 4 * count
        pos = skip_tags(view, pos, size, left)
        forgotten.append(topic)
    return forgotten, pos


_FRAME = Struct(">ii")
_FRAME_TAGGED = Struct(">iix")
_HEAD_V4 = Struct(">ii").pack
_HEAD_V7 = Struct(">ihii").pack
_HEAD_COMPACT = Struct(">ihi").pack
_COUNT = Struct(">i").pack
_NAME_LENGTH = Struct(">h").pack
_OFFSETS_V4 = Struct(">ihqqi").pack
_OFFSETS_V5 = Struct(">ihqqqi").pack
_OFFSETS_COMPACT = Struct(">ihqqq").pack
_PARTITION_COMPACT = Struct(">ihqqqBi").pack  # to the preferred replica, where no transaction was aborted
_PREFERRED_LENGTH = Struct(">ii").pack
_ABORTED = Struct(">qq").pack
_ABORTED_COMPACT = Struct(">qqx").pack


def response_encoder(version: int, general: EncodeResponse) -> EncodeResponse:
    """The encoder of one version, 4 to 18. `general` is the compiled one."""
    if version < 12:
        return partial(encode_plain, version, general)
    return partial(encode_compact, version, general)


def encode_plain(
    version: int, general: EncodeResponse, correlation_id: int, response: FetchResponse
) -> list[Buffer]:
    """Versions 4 to 11."""
    count = len(response.responses)
    if response.node_endpoints or (version < 7 and response.session_id):
        return general(correlation_id, response)
    if version >= 7:
        head = _HEAD_V7(response.throttle_time_ms, response.error_code, response.session_id, count)
    else:
        head = _HEAD_V4(response.throttle_time_ms, count)
    out: list[Buffer] = []
    small: list[Buffer] = [head]  # waits to be joined
    for topic in response.responses:
        raw = string_bytes(topic.topic)
        small += (_NAME_LENGTH(len(raw)), raw, _COUNT(len(topic.partitions)))
        for p in topic.partitions:
            if is_rare(p) or (version < 11 and p.preferred_read_replica != -1):
                return general(correlation_id, response)
            aborted = p.aborted_transactions
            count = -1 if aborted is None else len(aborted)
            if version >= 5:
                offsets = _OFFSETS_V5(
                    p.partition_index,
                    p.error_code,
                    p.high_watermark,
                    p.last_stable_offset,
                    p.log_start_offset,
                    count,
                )
            else:
                offsets = _OFFSETS_V4(
                    p.partition_index, p.error_code, p.high_watermark, p.last_stable_offset, count
                )
            small.append(offsets)
            if aborted:
                small += [_ABORTED(one.producer_id, one.first_offset) for one in aborted]
            records = p.records
            length = records_length(records)
            small.append(
                _PREFERRED_LENGTH(p.preferred_read_replica, length) if version >= 11 else _COUNT(length)
            )
            if records is not None:
                small = put_records(out, small, records)
    return finished(out, small, _FRAME, correlation_id)


def encode_compact(
    version: int, general: EncodeResponse, correlation_id: int, response: FetchResponse
) -> list[Buffer]:
    """Versions 12 and up."""
    if response.node_endpoints:
        return general(correlation_id, response)
    head = _HEAD_COMPACT(response.throttle_time_ms, response.error_code, response.session_id)
    out: list[Buffer] = []
    small: list[Buffer] = [head, uvarint(len(response.responses) + 1)]  # waits to be joined
    for topic in response.responses:
        if version >= 13:
            small.append(uuid_field(topic.topic_id))
        else:
            raw = string_bytes(topic.topic)
            small += (uvarint(len(raw) + 1), raw)
        small.append(uvarint(len(topic.partitions) + 1))
        for p in topic.partitions:
            if is_rare(p):
                return general(correlation_id, response)
            if p.aborted_transactions:
                small += aborted_partition(p)
            else:
                small.append(
                    _PARTITION_COMPACT(
                        p.partition_index,
                        p.error_code,
                        p.high_watermark,
                        p.last_stable_offset,
                        p.log_start_offset,
                        0 if p.aborted_transactions is None else 1,
                        p.preferred_read_replica,
                    )
                )
            records = p.records
            length = records_length(records)
            small.append(uvarint(length + 1))
            if records is not None:
                small = put_records(out, small, records)
            small.append(b"\0")
        small.append(b"\0")
    small.append(b"\0")
    return finished(out, small, _FRAME_TAGGED, correlation_id)


def is_rare(partition: PartitionData) -> bool:
    """Whether a partition says something that goes into its tagged section."""
    return (
        partition.current_leader is not NO_LEADER
        or partition.diverging_epoch is not NO_DIVERGENCE
        or partition.snapshot_id is not NO_SNAPSHOT
    )


def aborted_partition(partition: PartitionData) -> list[bytes]:
    """What goes before the length of records in a compact version, for a partition with aborted
    transactions."""
    p = partition
    aborted = p.aborted_transactions or []
    return [
        _OFFSETS_COMPACT(
            p.partition_index, p.error_code, p.high_watermark, p.last_stable_offset, p.log_start_offset
        ),
        uvarint(len(aborted) + 1),
        *(_ABORTED_COMPACT(one.producer_id, one.first_offset) for one in aborted),
        _COUNT(p.preferred_read_replica),
    ]


def records_length(records: Buffer | Sequence[Buffer] | None) -> int:
    """What the wire says of records: -1 for null."""
    if records is None:
        return -1
    return len(records) if isinstance(records, ONE_BUFFER) else sum(map(len, records))


def put_records(out: list[Buffer], small: list[Buffer], records: Buffer | Sequence[Buffer]) -> list[Buffer]:
    """Moves records to `out` behind what waits, or lets them wait too where they are small. Gives what waits
    now."""
    for part in (records,) if isinstance(records, ONE_BUFFER) else records:
        if len(part) <= JOINED_BYTES_MAX:
            small.append(part)
            continue
        if small:
            out.append(b"".join(small))
            small = []
        out.append(part)
    return small


def finished(out: list[Buffer], small: list[Buffer], frame: Struct, correlation_id: int) -> list[Buffer]:
    """The whole frame: what still waits at its end, length and header in its first buffer."""
    if small:
        out.append(b"".join(small))
    out[0] = frame.pack(frame.size - 4 + sum(map(len, out)), correlation_id) + bytes(out[0])
    return out
