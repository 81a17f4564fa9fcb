"""The record's 24-byte header: round trip, truncation at every byte, every flipped bit, foreign epochs and
places."""

from __future__ import annotations

import itertools

import pytest

from millrace.protocol.crc32c import crc32c
from millrace.wal.record import (
    RECORD_HEADER_BYTES,
    decode_record,
    encode_record_header,
    epoch_seed,
    put_record,
)

SEED = epoch_seed(7)


def encoded(body: bytes, position: int = 8192, seed: int = SEED, lead: int = 0) -> bytes:
    body_crc = crc32c(body[:lead], crc32c(body[lead:]))
    return encode_record_header(lead, len(body), position, body_crc, seed) + body


@pytest.mark.parametrize(
    ("body", "lead"), [(b"", 0), (b"x", 0), (b"x", 1), (b"record" * 700, 0), (b"record" * 700, 61)]
)
def test_round_trip(body: bytes, lead: int) -> None:
    """A record is read back whole, wherever it stands in the block and wherever its checksum begins."""
    data = memoryview(b"\xff" * 64 + encoded(body, lead=lead) + b"\xff" * 9)
    found = decode_record(data, 64, 64 + RECORD_HEADER_BYTES + len(body), 8192, SEED)
    assert found is not None
    assert bytes(found.payload) == body
    assert (found.lead, found.tail_crc) == (lead, crc32c(body[lead:]))


def test_the_layout_is_fixed() -> None:
    """The bytes of one record, field by field: a format that disks hold does not drift."""
    assert encoded(b"abc").hex() == "4d520000000000030000000000002000364b3fb793d85308616263"
    assert encoded(b"abc", lead=2).hex() == "4d520002000000030000000000002000bfa846206515309e616263"


@pytest.mark.parametrize("cuts", [(), (40,), (40, 61), (0,), (700,)])
@pytest.mark.parametrize("is_summed", [False, True])
def test_a_record_is_put_in_place_from_parts(cuts: tuple[int, ...], is_summed: bool) -> None:
    """However a payload is cut, and whether its tail's checksum is known or not, what stands in the arena is
    read back, and nothing beside it is touched."""
    body = bytes(range(256)) * 3
    edges = (0, *cuts, len(body))
    parts = tuple(body[start:end] for start, end in itertools.pairwise(edges))
    tail_crc = crc32c(parts[-1]) if is_summed else None
    arena = bytearray(b"\xff" * 1000)
    payload = put_record(memoryview(arena), 64, parts, len(body), 8192, tail_crc, SEED)
    assert payload.readonly
    assert bytes(payload) == body
    end = 64 + RECORD_HEADER_BYTES + len(body)
    found = decode_record(memoryview(arena), 64, end, 8192, SEED)
    assert found is not None
    assert bytes(found.payload) == body
    assert arena[:64] + arena[end:] == b"\xff" * (64 + 1000 - end)


def test_truncated_at_every_byte() -> None:
    """A record that is cut anywhere is not a record."""
    whole = encoded(b"some body")
    for limit in range(len(whole)):
        assert decode_record(memoryview(whole), 0, limit, 8192, SEED) is None


@pytest.mark.parametrize("lead", [0, 4, 9])
def test_every_flipped_bit_is_seen(lead: int) -> None:
    """No single flipped bit, in header or body, passes."""
    whole = encoded(b"some body", lead=lead)
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_record(memoryview(damaged), 0, len(whole), 8192, SEED) is None


def test_a_lead_beyond_the_body_is_refused() -> None:
    """A checksum that would begin behind the record's end is not looked for."""
    body = b"some body"
    whole = encode_record_header(10, len(body), 8192, crc32c(body), SEED) + body
    assert decode_record(memoryview(whole), 0, len(whole), 8192, SEED) is None


def test_another_place_or_epoch_is_refused() -> None:
    """A sound record of another position, or of another owner's epoch, does not count here."""
    whole = memoryview(encoded(b"some body"))
    assert decode_record(whole, 0, len(whole), 8193, SEED) is None
    assert decode_record(whole, 0, len(whole), 8192, epoch_seed(8)) is None
