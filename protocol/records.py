"""The records inside a batch, for the few who must look: coordinators, compaction, time lookup, keyed topics.

    varint length of the rest | attributes i8 | varlong timestamp delta | varint offset delta
    varint key length (-1 null) key | varint value length (-1 null) value
    varint header count, each: varint length key, varint length (-1 null) value

Not here: the batch's header and its making (batches.py). The produce and fetch paths never come here.

Kept true: a length or a count is compared with the bytes that remain before it is used; a batch yields
exactly the records its header counts or raises WireError. What is yielded is copied out, so that it pins no
frame and no block. A batch that is walked takes its payload, unpacked, and one record: up to 34 times its
bytes where it is all empty headers.

Who unpacks a batch elsewhere walks the payload here (`times_in`, `keyless_in`): generators, to be left and
taken up again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum

from millrace.protocol.batches import APPEND_TIME_BIT, HEADER_BYTES, BatchHeader
from millrace.protocol.compression import RECORDS_BYTES_MAX, unpack
from millrace.protocol.dataclass import dataclass
from millrace.protocol.errors import WireError
from millrace.protocol.primitives import Buffer, read_varint, read_varlong, varint

Headers = Sequence[tuple[bytes, bytes | None]]

WINDOW_BYTES = 64 << 10
HEAD_BYTES_MAX = 32  # lengths of a record and of its key, attributes and two deltas: 26

_CONTROL_KEY = struct.Struct(">hh")
_END_MARKER = struct.Struct(">hi")
_NULL = varint(-1)


@dataclass(slots=True)
class Record:
    """One record. `offset` is known of records that were read; a batch that is built gives its own."""

    key: bytes | None
    value: bytes | None
    timestamp: int = -1
    headers: Headers = ()  # keys are UTF-8, kept as bytes so that what is no UTF-8 survives a rewrite
    offset: int = -1


class ControlType(IntEnum):
    """What a control record says, by the second half of its key."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def iter_records(view: memoryview, bytes_max: int = RECORDS_BYTES_MAX) -> Iterator[Record]:
    """The records of the batch at the start of `view`, in order."""
    header = BatchHeader(view)
    payload = bytes(_payload(view, header, bytes_max))
    append_time = header.max_timestamp if header.attributes & APPEND_TIME_BIT else None
    for position, end in _spans(payload, header.record_count):
        record = decode_record(payload, position, end)
        record.offset += header.base_offset
        record.timestamp = record.timestamp + header.base_timestamp if append_time is None else append_time
        yield record


def iter_times(view: memoryview, bytes_max: int = RECORDS_BYTES_MAX) -> Iterator[tuple[int, int]]:
    """(offset, timestamp) of each record of a batch; keys, values and headers are stepped over."""
    header = BatchHeader(view)
    return times_in(header, _payload(view, header, bytes_max))


def times_in(header: BatchHeader, payload: Buffer) -> Iterator[tuple[int, int]]:
    """(offset, timestamp) of each record of a batch that is unpacked."""
    append_time = header.max_timestamp if header.attributes & APPEND_TIME_BIT else None
    base_timestamp, base_offset = header.base_timestamp, header.base_offset
    for window, position, end in _heads(payload, header.record_count):
        timestamp_delta, offset_delta, _ = _read_deltas(window, position, end)
        yield (
            base_offset + offset_delta,
            base_timestamp + timestamp_delta if append_time is None else append_time,
        )


def indexes_without_key(view: memoryview, bytes_max: int = RECORDS_BYTES_MAX) -> list[int]:
    """Which records of a batch (0 for the first) have no key: a compacted topic takes none of these."""
    header = BatchHeader(view)
    keyless = keyless_in(header, _payload(view, header, bytes_max))
    return [index for index, is_keyless in enumerate(keyless) if is_keyless]


def keyless_in(header: BatchHeader, payload: Buffer) -> Iterator[bool]:
    """Whether each record of a batch that is unpacked has no key."""
    for window, position, end in _heads(payload, header.record_count):
        _, _, position = _read_deltas(window, position, end)
        length, _ = _read_length(window, position, end)
        yield length < 0


def encode_records(records: Sequence[Record], base_timestamp: int, first_delta: int = 0) -> bytes:
    """The records section of a batch, or a part of one, uncompressed, with consecutive offset deltas from
    `first_delta` on."""
    return b"".join(
        encode_record(delta, record.timestamp - base_timestamp, record.key, record.value, record.headers)
        for delta, record in enumerate(records, first_delta)
    )


def encode_record(
    offset_delta: int, timestamp_delta: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()
) -> bytes:
    """One record with its length before it."""
    parts: list[Buffer] = [b"\x00", varint(timestamp_delta), varint(offset_delta)]
    _put(parts, key)
    _put(parts, value)
    parts.append(varint(len(headers)))
    for header_key, header_value in headers:
        _put(parts, header_key)
        _put(parts, header_value)
    return b"".join((varint(sum(map(len, parts))), *parts))


def _put(parts: list[Buffer], value: Buffer | None) -> None:
    if value is None:
        parts.append(_NULL)
    else:
        parts += (varint(len(value)), value)


def decode_record(payload: bytes, position: int, end: int) -> Record:
    """The record whose attributes stand at `position`; its timestamp and offset are the deltas. `end` must be
    its end. Raises WireError where it is not, or a length is wrong."""
    timestamp_delta, offset_delta, position = _read_deltas(payload, position, end)
    key, position = _read_bytes(payload, position, end)
    value, position = _read_bytes(payload, position, end)
    count, position = _read_length(payload, position, end)
    headers: Headers = ()
    if count:
        headers, position = _read_headers(payload, position, end, count)
    if position != end:
        raise WireError(f"{end - position} bytes after the end of a record")
    return Record(key, value, timestamp_delta, headers, offset_delta)


def _payload(view: memoryview, header: BatchHeader, bytes_max: int) -> Buffer:
    if not HEADER_BYTES <= header.size_bytes <= len(view):
        raise WireError(f"batch of {header.size_bytes} bytes in {len(view)}")
    return unpack(header.codec, view[HEADER_BYTES : header.size_bytes], bytes_max)


def _spans(payload: bytes, count: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each record after its length. They fill the payload exactly."""
    position, size = 0, len(payload)
    for _ in range(count):
        length, position = _read_length(payload, position, size)
        end = position + length
        if length < 0 or end > size:
            raise WireError(f"record of {length} bytes in {size - position}")
        yield position, end
        position = end
    if position != size:
        raise WireError(f"{size - position} bytes after the last of {count} records")


def _heads(payload: Buffer, count: int) -> Iterator[tuple[bytes, int, int]]:
    """(bytes, start, end) of each record after its length. They fill the payload exactly. The bytes hold all
    of a record up to its key, and maybe no more: a window is copied out at a time, since to index bytes takes
    half as long as to index a view, and nobody looks further."""
    view, size = memoryview(payload), len(payload)
    position = start = whole_end = 0  # a record that begins below `whole_end` has its head in the window
    window = b""
    for _ in range(count):
        if position >= whole_end:
            window, start = bytes(view[position : position + WINDOW_BYTES]), position
            window_end = start + len(window)
            whole_end = size + 1 if window_end == size else window_end - HEAD_BYTES_MAX
        length, head = _read_length(window, position - start, size - start)
        position = start + head + length
        if length < 0 or position > size:
            raise WireError(f"record of {length} bytes in {size - start - head}")
        yield window, head, head + length
    if position != size:
        raise WireError(f"{size - position} bytes after the last of {count} records")


def _read_length(payload: bytes, position: int, end: int) -> tuple[int, int]:
    """A varint that ends at or before `end`. Nearly all are of one or two bytes."""
    if position + 1 < end:
        byte = payload[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        second = payload[position + 1]
        if second < 0x80:
            value = second << 7 | byte & 0x7F
            return (value >> 1) ^ -(value & 1), position + 2
    try:
        value, position = read_varint(payload, position)
    except IndexError:
        raise WireError("record cut off") from None
    if position > end:
        raise WireError("record cut off")
    return value, position


def _read_deltas(payload: bytes, position: int, end: int) -> tuple[int, int, int]:
    """Timestamp delta, offset delta and the position of the key; the attributes before them mean nothing."""
    position += 1
    if position < end and (byte := payload[position]) < 0x80:
        timestamp_delta = (byte >> 1) ^ -(byte & 1)
        position += 1
    else:
        try:
            timestamp_delta, position = read_varlong(payload, position)
        except IndexError:
            raise WireError("record cut off") from None
    offset_delta, position = _read_length(payload, position, end)
    return timestamp_delta, offset_delta, position


def _read_bytes(payload: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _read_length(payload, position, end)
    if length < 0:
        return None, position
    if length > end - position:
        raise WireError(f"{length} bytes in {end - position}")
    return payload[position : position + length], position + length


def _read_headers(payload: bytes, position: int, end: int, count: int) -> tuple[Headers, int]:
    if not 0 <= count <= (end - position) // 2:
        raise WireError(f"{count} headers in {end - position} bytes")
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        key, position = _read_bytes(payload, position, end)
        if key is None:
            raise WireError("header without a key")
        value, position = _read_bytes(payload, position, end)
        headers.append((key, value))
    return headers, position


def control_key(control_type: int) -> bytes:
    """The key of a control record."""
    return _CONTROL_KEY.pack(0, control_type)


def decode_control_key(key: Buffer | None) -> int:
    """What a control record says: a `ControlType`, or a number that a later Kafka gave a meaning. Raises
    WireError where the key is cut off or null."""
    if key is None or len(key) < _CONTROL_KEY.size:
        raise WireError("control record without a whole key")
    version, control_type = _CONTROL_KEY.unpack_from(key)
    if version < 0:
        raise WireError(f"control record of version {version}")
    return int(control_type)


def encode_end_marker(coordinator_epoch: int) -> bytes:
    """The value of a transaction's end marker."""
    return _END_MARKER.pack(0, coordinator_epoch)


def decode_end_marker(value: Buffer | None) -> int:
    """The transaction coordinator's epoch in a transaction's end marker. Raises WireError where the value is
    cut off or null."""
    if value is None or len(value) < _END_MARKER.size:
        raise WireError("end marker without a whole value")
    return int(_END_MARKER.unpack_from(value)[1])
