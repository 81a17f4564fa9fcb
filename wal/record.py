"""One record of a WAL: a 24-byte header and the payload. Encode and verify; nothing of blocks, rings or
files.

     0       2      4        8                16       20       24
     | magic | lead | length | position       | body   | header | payload ...
     | u16   | u16  | u32    | i64            | CRC32C | CRC32C |

Big-endian. The body's CRC is over the payload from byte `lead` on and then over its first `lead` bytes:
whoever hands in a long tail with a CRC that was just verified (a client's batch) has it carried on, and
nobody walks those bytes a second time. The header's CRC covers the 20 bytes before it and continues from a
*seed*, the CRC of the owner's epoch: so a record of an older epoch at the same position, left over where a
newer one's write was torn, never passes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from millrace.protocol.crc32c import crc32c

RECORD_HEADER_BYTES = 24
RECORD_MAGIC = 0x4D52
LEAD_BYTES_MAX = 0xFFFF

_HEADER = struct.Struct(">HHIqI")
_pack_header = _HEADER.pack
_CRC = struct.Struct(">I")


class DecodedPayload(NamedTuple):
    """`tail_crc`: the CRC32C of `payload` from byte `lead` on, as it was found there."""

    payload: memoryview
    lead: int
    tail_crc: int


def epoch_seed(epoch: int) -> int:
    """What a record header's CRC continues from."""
    return crc32c(epoch.to_bytes(8, "big"))


def encode_record_header(lead: int, length: int, position: int, body_crc: int, seed: int) -> bytes:
    header = _pack_header(RECORD_MAGIC, lead, length, position, body_crc)
    return header + crc32c(header, seed).to_bytes(4, "big")


def put_record(
    arena: memoryview,
    at: int,
    parts: tuple[bytes | bytearray | memoryview, ...],
    length: int,
    position: int,
    tail_crc: int | None,
    seed: int,
) -> memoryview:
    """Copies a record whose payload is the concatenation of `parts`, `length` bytes in all, to `at`; gives a
    read-only view of the payload. `tail_crc`: of the last part, when it is known."""
    body_at = put_at = at + RECORD_HEADER_BYTES
    if tail_crc is not None and len(parts) == 2:  # the common case, in as few steps as it takes
        head, tail = parts
        lead = len(head)
        header = encode_record_header(lead, length, position, crc32c(head, tail_crc), seed)
        put_at = body_at + lead
        arena[at:put_at] = header + head
        arena[put_at : body_at + length] = tail
        return arena[body_at : body_at + length].toreadonly()
    for part in parts:
        put_end = put_at + len(part)
        arena[put_at:put_end] = part
        put_at = put_end
    payload = arena[body_at:put_at].toreadonly()
    if tail_crc is None:
        header = encode_record_header(0, length, position, crc32c(payload), seed)
    else:
        lead = length - len(parts[-1])
        header = encode_record_header(lead, length, position, crc32c(payload[:lead], tail_crc), seed)
    arena[at:body_at] = header
    return payload


def record_end(block: memoryview, at: int, limit: int, position: int, seed: int) -> int | None:
    """Where the record at `at` ends, by a header that is sound, whatever became of its payload; None when
    there is no such header."""
    body_at = at + RECORD_HEADER_BYTES
    if body_at > limit or _CRC.unpack_from(block, at + 20)[0] != crc32c(block[at : at + 20], seed):
        return None
    magic, _, length, stored_position, _ = _HEADER.unpack_from(block, at)
    is_here = magic == RECORD_MAGIC and stored_position == position and body_at + length <= limit
    return body_at + length if is_here else None


def decode_record(block: memoryview, at: int, limit: int, position: int, seed: int) -> DecodedPayload | None:
    """The payload of the record at `at`, or None when there is no whole, sound record of `position` below
    `limit`."""
    body_at = at + RECORD_HEADER_BYTES
    if body_at > limit:
        return None
    magic, lead, length, stored_position, body_crc = _HEADER.unpack_from(block, at)
    if magic != RECORD_MAGIC or stored_position != position or body_at + length > limit or lead > length:
        return None
    if _CRC.unpack_from(block, at + 20)[0] != crc32c(block[at : at + 20], seed):
        return None
    payload = block[body_at : body_at + length]
    tail_crc = crc32c(payload[lead:])
    return DecodedPayload(payload, lead, tail_crc) if crc32c(payload[:lead], tail_crc) == body_crc else None
