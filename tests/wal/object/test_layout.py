"""The header of an object: there and back, and every damage to it is seen."""

from __future__ import annotations

import pytest

from millrace.protocol.crc32c import crc32c
from millrace.wal.errors import WalCorrupt, WalMismatch
from millrace.wal.object.layout import (
    HEADER_BYTES,
    SEAL_BYTES,
    SEAL_OF_CLOSED_BYTES,
    FenceKind,
    Kind,
    ObjectHeader,
    Place,
    Stamp,
    claim_key,
    decode_header,
    end_of_epoch,
    is_seal_size,
    object_key,
    parse_claim,
    parse_epoch,
    seal_bytes,
)
from millrace.wal.record import RECORD_HEADER_BYTES

HEADER = ObjectHeader(
    Kind.RECORDS, FenceKind.RESERVATION, "cluster-of-22-letters!", 7, 1 << 50, b"12345678", Place(1 << 50, 99), 1 << 60, 4096, 3,
    Stamp(98, 1 << 59, Place(5, 2), (1 << 59) - 7), Place(5, 17),
)  # fmt: skip


@pytest.mark.parametrize("link", [None, Place(5, 17)])
def test_a_header_comes_back(link: Place | None) -> None:
    """Each field has its place, in a header of the size that is drawn."""
    header = ObjectHeader(*[link if name == "link" else getattr(HEADER, name) for name in HEADER.__slots__])
    data = header.encode()
    assert len(data) == HEADER_BYTES
    assert decode_header(data, 0) == header
    assert header.end == (1 << 60) + HEADER_BYTES + 4096


def test_every_flipped_byte_is_seen() -> None:
    """In whatever field the damage is, the header is refused with the place where it was due."""
    data = HEADER.encode()
    for at in range(196):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(WalCorrupt) as corrupt:
            decode_header(damaged, 4711)
        assert corrupt.value.position == 4711
    for length in (0, 7, 100, HEADER_BYTES - 1):
        with pytest.raises(WalCorrupt):
            decode_header(data[:length], 0)


def test_a_later_version_is_named() -> None:
    """A sound header of a version that is not ours is no damage, and a kind that we do not know is."""
    data = bytearray(HEADER.encode())
    data[9] = 2
    data[192:196] = crc32c(bytes(data[:192])).to_bytes(4, "big")
    with pytest.raises(WalMismatch) as mismatch:
        decode_header(data, 0)
    assert (mismatch.value.field, mismatch.value.expected, mismatch.value.found) == ("version", 1, 2)
    data[9:11] = bytes([1, 77])
    data[192:196] = crc32c(bytes(data[:192])).to_bytes(4, "big")
    with pytest.raises(WalCorrupt, match="kind"):
        decode_header(data, 0)


def test_a_listing_tells_seals() -> None:
    """A seal's size is no mark's and no object's with records."""
    assert [len(seal_bytes(HEADER, is_of_closed=closed)) for closed in (False, True)] == [
        SEAL_BYTES,
        SEAL_OF_CLOSED_BYTES,
    ]
    assert is_seal_size(SEAL_BYTES)
    assert is_seal_size(SEAL_OF_CLOSED_BYTES)
    assert not is_seal_size(HEADER_BYTES)
    assert not is_seal_size(HEADER_BYTES + RECORD_HEADER_BYTES)


def test_what_lies_behind_an_epoch_sorts_behind_it() -> None:
    """A listing from the end of an epoch on shows everything of later epochs, claims too, and nothing else."""
    keys = []
    for epoch in (3, 4, 11):
        keys += [claim_key("p/", epoch), object_key("p/", Place(epoch, 0)), object_key("p/", Place(epoch, 1 << 60))]
    assert sorted({parse_epoch("p/", key) for key in keys if key > end_of_epoch("p/", 3)}) == [4, 11]
    assert [parse_claim("p/", key) for key in keys] == [3, None, None, 4, None, None, 11, None, None]
