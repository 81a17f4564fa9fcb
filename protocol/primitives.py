"""Kafka's primitive encodings: the only place that knows varints, tagged sections and their bounds.

Not here: messages (messages/), their compilation (compile*.py), record batches (batches.py). Compiled codecs
inline the common one-byte case of a length and call these for the rest; the hand-written twins
(messages/*_hot.py) call more of them.

    uvarint    7 bits a byte, little end first, top bit set on all but the last; 5 bytes at most for 32 bits
    varint     zig-zag, then uvarint; records only. varlong: the same over 64 bits, 10 bytes at most
    tags       uvarint count, then (uvarint tag, uvarint size, bytes) by ascending tag

Kept true: a reader never reads outside its buffer, never allocates by a length it has not compared with the
bytes that remain, and raises WireError or IndexError; a caller at the edge of the package turns the latter
into WireError.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

from millrace.protocol.errors import TooManyElements, WireError

Buffer: TypeAlias = bytes | bytearray | memoryview

# Kafka 4.4 refuses more than these before it allocates anything; so do we.
ARRAY_COUNT_MAX = 1_000_000
TAG_COUNT_MAX = 10_000
STRING_BYTES_MAX = 32_767
# Elements and tags in all of one request: an element may take a byte on the wire and a hundred in memory, and
# a microsecond of everybody's time. Several times what the largest requests of real clients hold. A list of
# numbers counts as an eighth of its length.
REQUEST_ELEMENTS_MAX = 250_000
# Of a Produce or a Fetch, whose elements are the dearest: to free what twice as many came to is tens of
# milliseconds in one piece.
DATA_ELEMENTS_MAX = 120_000
# What a group is given it looks at in one piece: 25,000 assignments are some four milliseconds.
GROUP_ELEMENTS_MAX = 25_000
# Of those, as many are decoded in one go, about a millisecond; who holds more is decoded in steps (codec.py).
ELEMENTS_AT_ONCE = 500
UNBOUNDED = 1 << 62

# What reading outside a buffer or meeting a bad string raises inside a decoder; always shown to callers as
# WireError.
READ_ERRORS = (struct.error, IndexError, UnicodeDecodeError)

_SHORT = struct.Struct(">h").unpack_from

ONE_BYTE = tuple(bytes((value,)) for value in range(128))


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """An unsigned 32-bit varint at `pos`: the value and the position after it. Raises WireError for more
    bits, IndexError where it is cut off."""
    value = buf[pos]
    if value < 0x80:
        return value, pos + 1
    byte = buf[pos + 1]
    value = value & 0x7F | (byte & 0x7F) << 7
    if byte < 0x80:
        return value, pos + 2
    shift = 14
    for index in range(pos + 2, pos + 5):
        byte = buf[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFF_FFFF:
                raise WireError("varint above 32 bits")
            return value, index + 1
        shift += 7
    raise WireError("varint longer than 5 bytes")


def read_uvarlong(buf: Buffer, pos: int) -> tuple[int, int]:
    """An unsigned 64-bit varint at `pos`: the value and the position after it. Raises WireError for more
    bits, IndexError where it is cut off."""
    value = buf[pos]
    if value < 0x80:
        return value, pos + 1
    byte = buf[pos + 1]
    value = value & 0x7F | (byte & 0x7F) << 7
    if byte < 0x80:
        return value, pos + 2
    shift = 14
    for index in range(pos + 2, pos + 10):
        byte = buf[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFF_FFFF_FFFF_FFFF:
                raise WireError("varlong above 64 bits")
            return value, index + 1
        shift += 7
    raise WireError("varlong longer than 10 bytes")


def read_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    """A signed 32-bit varint at `pos`, as records use them."""
    value, pos = read_uvarint(buf, pos)
    return (value >> 1) ^ -(value & 1), pos


def read_varlong(buf: Buffer, pos: int) -> tuple[int, int]:
    """A signed 64-bit varint at `pos`, as records use them."""
    value, pos = read_uvarlong(buf, pos)
    return (value >> 1) ^ -(value & 1), pos


def uvarint(value: int) -> bytes:
    """`value`, which is not negative and fits in 64 bits, as an unsigned varint. Else raises ValueError."""
    if 0 <= value < 0x80:
        return ONE_BYTE[value]
    if 0 < value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if 0 < value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value < 0 or value >> 64:
        raise ValueError(f"not an unsigned varint: {value}")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """`value`, which fits in a signed 64-bit integer, zig-zag encoded. The same bytes for varint and varlong.
    Else raises ValueError."""
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"not a 64-bit integer: {value}")
    return uvarint((value << 1) ^ (value >> 63))


def skip_tags(buf: Buffer, pos: int, end: int, left: list[int] | None = None) -> int:
    """Steps over a tagged section of which nothing is known; the position after it. `left[0]`: what is left
    of a bound for all sections together. Raises WireError for too many tags, a field beyond `end`, or more
    than that bound."""
    count, pos = read_uvarint(buf, pos)
    if count > TAG_COUNT_MAX:
        raise WireError(f"{count} tagged fields")
    if left is not None:
        spend(left, count)
    for _ in range(count):
        _tag, pos = read_uvarint(buf, pos)
        length, pos = read_uvarint(buf, pos)
        pos += length
        if pos > end:
            raise WireError("tagged field beyond the end")
    return pos


def check_count(count: int, least_bytes: int, left_bytes: int) -> None:
    """Refuses the count of a null array, one above the bound, and one that cannot be in the bytes that are
    left."""
    if not 0 <= count <= ARRAY_COUNT_MAX or count * least_bytes > left_bytes:
        raise WireError(f"an array of {count} elements")


def spend(left: list[int], count: int) -> None:
    """Takes elements off what a request may hold in all. Raises TooManyElements."""
    left[0] -= count
    if left[0] < 0:
        raise TooManyElements("more elements than a request may hold")


def read_string(view: memoryview, pos: int, end: int) -> tuple[str, int]:
    """A string that is not null, after an int16 length. Raises WireError for a null, or one beyond `end`."""
    (length,) = _SHORT(view, pos)
    stop = pos + 2 + length
    if length < 0 or stop > end:
        raise WireError(f"a string of {length} bytes")
    return str(view[pos + 2 : stop], "utf-8"), stop


def read_compact_count(view: memoryview, pos: int, least_bytes: int, end: int) -> tuple[int, int]:
    """The count of a compact array that is not null, whose elements take `least_bytes` each at least."""
    count = view[pos]
    pos += 1
    if count > 127:
        count, pos = read_uvarint(view, pos - 1)
    check_count(count - 1, least_bytes, end - pos)
    return count - 1, pos


def read_compact_string(view: memoryview, pos: int, end: int) -> tuple[str, int]:
    """A compact string that is not null. Raises WireError for a null, or one beyond `end`."""
    length = view[pos]
    pos += 1
    if length > 127:
        length, pos = read_uvarint(view, pos - 1)
    stop = pos + length - 1
    if not 0 < length <= STRING_BYTES_MAX + 1 or stop > end:
        raise WireError(f"a string of {length - 1} bytes")
    return str(view[pos:stop], "utf-8"), stop


def tag_section(tagged: Sequence[tuple[int, bytes]]) -> bytes:
    """A tagged section of the (tag, value) pairs given, which ascend by tag."""
    parts = [uvarint(len(tagged))]
    for tag, value in tagged:
        parts += (uvarint(tag), uvarint(len(value)), value)
    return b"".join(parts)


def string_bytes(text: str) -> bytes:
    """The UTF-8 of a string field, refused above what an int16 length can say."""
    raw = text.encode()
    if len(raw) > STRING_BYTES_MAX:
        raise ValueError(f"string of {len(raw)} bytes")
    return raw


def uuid_field(raw: bytes) -> bytes:
    """A uuid as it goes to the wire. A wrong length would be padded or cut by struct in silence, so it is
    refused."""
    if len(raw) != 16:
        raise ValueError(f"uuid of {len(raw)} bytes")
    return raw


def total_bytes(buffers: Sequence[Buffer]) -> int:
    """The bytes in a list of buffers."""
    return sum(map(len, buffers))
