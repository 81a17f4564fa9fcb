"""The header of an object: there and back, and every damage to it is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.protocol.crc32c import crc32c
from millrace.wal.errors import WalCorrupt, WalMismatch
from millrace.wal.identity import MetadataMark
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
    Kind.RECORDS, FenceKind.RESERVATION, "cluster-of-22-letters!", 7, 1 << 50, b"12345678", Place(1 << 50,
    99), 1 << 60, 4096, 3,
    Stamp(98, 1 << 59, Place(5, 2), (1 << 59) - 7), Place(5, 17),
)  # fmt: skip
NAMING = replace(
    HEADER, stamp=replace(HEADER.stamp, mark=MetadataMark((1 << 61) + 5, (1 << 31) - 2))
)  # metadata
BY_VERSION = {1: HEADER, 2: NAMING}


@pytest.mark.parametrize("version", BY_VERSION)
@pytest.mark.parametrize("link", [None, Place(5, 17)])
def test_a_header_comes_back(version: int, link: Place | None) -> None:
    """Each field has its place, in a header of the size that is drawn; one that names no metadata is of
    version 1."""
    header = replace(BY_VERSION[version], link=link)
    data = header.encode()
    assert len(data) == HEADER_BYTES
    assert int.from_bytes(data[8:10], "big") == version
    assert decode_header(data, 0) == header
    assert header.end == (1 << 60) + HEADER_BYTES + 4096


@pytest.mark.parametrize("kind", Kind)
def test_any_kind_can_name_metadata(kind: Kind) -> None:
    """A seal far above the first slot that is empty, and the first object of an owner with nothing confirmed,
    too."""
    for slot, confirmed_slot in ((0, 0), (1023, 0), ((1 << 40) + 1023, 1 << 40)):
        stamp = replace(NAMING.stamp, confirmed_slot=confirmed_slot)
        header = replace(NAMING, kind=kind, place=Place(3, slot), stamp=stamp)
        assert decode_header(header.encode(), 0) == header


@pytest.mark.parametrize("version", BY_VERSION)
def test_every_flipped_byte_is_seen(version: int) -> None:
    """In whatever field the damage is, the header is refused with the place where it was due; so is one that
    is cut."""
    data = BY_VERSION[version].encode()
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
    """A sound header of a version that is not ours is no damage, and a kind that we do not know is. The sum
    of either version lies where that of a later one will: a build that knows version 1 alone says so of
    version 2."""
    data = bytearray(NAMING.encode())
    assert data[192:196] == crc32c(bytes(data[:192])).to_bytes(4, "big")
    data[9] = 3
    data[192:196] = crc32c(bytes(data[:192])).to_bytes(4, "big")
    with pytest.raises(WalMismatch) as mismatch:
        decode_header(data, 0)
    assert (mismatch.value.field, mismatch.value.expected, mismatch.value.found) == ("version", 2, 3)
    data[9:11] = bytes([2, 77])
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
    """A listing from the end of an epoch on shows everything of later epochs, claims too, and nothing
    else."""
    keys = []
    for epoch in (3, 4, 11):
        keys += [
            claim_key("p/", epoch),
            object_key("p/", Place(epoch, 0)),
            object_key("p/", Place(epoch, 1 << 60)),
        ]
    assert sorted({parse_epoch("p/", key) for key in keys if key > end_of_epoch("p/", 3)}) == [4, 11]
    assert [parse_claim("p/", key) for key in keys] == [3, None, None, 4, None, None, 11, None, None]
