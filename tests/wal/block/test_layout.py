"""The bytes of the device header and of a block header, and the ring's arithmetic."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.runtime.disk.lock_keeper import UNTOLD, LockKeeper
from millrace.wal.block.layout import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    REIGNS_MAX,
    BlockHeader,
    DeviceHeader,
    Geometry,
    Reign,
    align_down,
    align_up,
    choose_device_header,
    decode_block_header,
    decode_device_header,
    encode_block_header,
)
from millrace.wal.errors import WalMismatch

HEADER = DeviceHeader(
    cluster_id="cluster", node_id=3, epoch=9, epoch_start=4096, capacity_bytes=1 << 20, trim=100, head=0,
    confirmed=8192,
    block_bytes_max=1 << 16, window_bytes=1 << 18, filled_bytes=12288, closed_end=-1, sequence=5,
    earlier=(Reign(7, 0),),
)  # fmt: skip
BLOCK = BlockHeader(epoch=9, position=8192, previous_end=4096, confirmed=4096, length=5000, record_count=3)
ZEROS = bytes(BLOCK_BYTES)


def test_device_header_round_trip() -> None:
    """A copy is one block and reads back equal."""
    assert len(HEADER.encode()) == BLOCK_BYTES
    assert decode_device_header(HEADER.encode()) == HEADER


HELD = dataclasses.replace(HEADER, wal_id=b"w" * 16, holder=LockKeeper(b"m" * 16, b"b" * 16, b"f" * 16))


def test_a_holder_stands_behind_what_was_there_before() -> None:
    """All else of the copy is as without one, so that builds that know of none read it. Where a bit of it
    changed, or it stands behind another header, the header holds, and somebody holds the log who cannot be
    told: that is not nobody."""
    copy, without = HELD.encode(), dataclasses.replace(HELD, holder=None).encode()
    assert decode_device_header(copy) == HELD
    assert copy[:332] == without[:332]
    assert copy[332:384] == bytes(4) + b"m" * 16 + b"b" * 16 + b"f" * 16
    assert (any(copy[388:]), any(without[332:])) == (False, False)
    for bit in range(332 * 8, 388 * 8):
        damaged = bytearray(copy)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_device_header(bytes(damaged)) == dataclasses.replace(HELD, holder=UNTOLD), bit
    other = dataclasses.replace(HELD, holder=None, sequence=HELD.sequence + 1)
    mixed = other.encode()[:332] + copy[332:]
    assert decode_device_header(mixed) == dataclasses.replace(other, holder=UNTOLD)
    nameless = dataclasses.replace(HEADER, holder=HELD.holder)
    assert decode_device_header(nameless.encode()) == HEADER


def test_the_layouts_are_fixed() -> None:
    """The bytes of both headers: what disks hold does not drift."""
    assert HEADER.encode()[:128].hex() == (
        "4d52424c4b57414c" "0001" "0007" "00000003" "0000000000000009" "0000000000001000" "0000000000100000"
        "0000000000000064" "0000000000000000" "0000000000002000" "0000000000010000" "0000000000040000"
        "0000000000003000" "ffffffffffffffff" "0000000000000005" "636c757374657200" "0000000000000000"
        "0000000000000000"
    )  # fmt: skip
    assert HEADER.encode()[168:312].hex() == (
        "0000000000000007" "0000000000000000" + 7 * ("ffffffffffffffff" "0000000000000000")
        + HEADER.encode()[296:300].hex() + 24 * "0"
    )  # fmt: skip
    assert encode_block_header(BLOCK).hex() == (
        "4d52424b" "0001" "0000" "0000000000000009" "0000000000002000" "0000000000001000" "0000000000001000"
        "00001388" "00000003" "000000000000000000000000"
    ) + encode_block_header(BLOCK)[-4:].hex()  # fmt: skip


def test_any_flipped_bit_of_a_header_is_seen() -> None:
    """A device header or a block header with one bit flipped is no header."""
    copy = HEADER.encode()
    for bit in range(300 * 8):
        damaged = bytearray(copy)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_device_header(bytes(damaged)) is None
    block = encode_block_header(BLOCK)
    for bit in range(BLOCK_HEADER_BYTES * 8):
        damaged = bytearray(block)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_block_header(memoryview(damaged), 0) is None
    for length in range(BLOCK_HEADER_BYTES):
        assert decode_block_header(memoryview(block[:length]), 0) is None


def test_a_block_shorter_than_its_header_is_none() -> None:
    """A length that could make recovery stand still is refused, sound checksum or not."""
    for length in (0, 10, BLOCK_HEADER_BYTES - 1):
        assert (
            decode_block_header(memoryview(encode_block_header(dataclasses.replace(BLOCK, length=length))), 0)
            is None
        )


def test_the_higher_sequence_wins() -> None:
    """Of two sound copies the later holds, in either place; of one sound copy, that one."""
    older, newer = HEADER.encode(), dataclasses.replace(HEADER, trim=4096, sequence=6).encode()
    for pair in ((older, newer), (newer, older), (ZEROS, newer), (b"x" * BLOCK_BYTES, newer)):
        chosen = choose_device_header(*pair)
        assert chosen is not None
        assert chosen.trim == 4096


def test_a_device_without_a_header() -> None:
    """Neither copy can be read: there is no header. What else lies there, and whether a log may be made over
    it, two pages cannot tell."""
    for pair in ((ZEROS, ZEROS), (b"x" * BLOCK_BYTES, ZEROS), (b"x" * BLOCK_BYTES, b"x" * BLOCK_BYTES)):
        assert choose_device_header(*pair) is None


def test_a_later_version_is_refused_by_name() -> None:
    """A sound header of a version from the future says so, rather than passing for damage."""
    from millrace.protocol.crc32c import crc32c

    body = bytearray(dataclasses.replace(HEADER, wal_id=bytes(range(16))).encode()[:328])
    body[9] = 4
    copy = (bytes(body) + crc32c(bytes(body)).to_bytes(4, "big")).ljust(BLOCK_BYTES, b"\0")
    with pytest.raises(WalMismatch) as mismatch:
        decode_device_header(copy)
    assert (mismatch.value.field, mismatch.value.found) == ("version", 4)


def test_who_wrote_where() -> None:
    """Each owner's stretch ends where the next began; one that wrote nothing, or only what is forgotten, is
    left out, and the oldest go beyond the bound."""
    header = dataclasses.replace(
        HEADER, earlier=(Reign(3, 8192), Reign(7, 16384)), epoch=9, epoch_start=32768, head=8192
    )
    reigns = [header.reign_at(position) for position in (4096, 8192, 12288, 16384, 28672, 32768, 1 << 40)]
    assert [reign and reign.epoch for reign in reigns] == [None, 3, 3, 7, 7, 9, 9]
    assert header.earlier_than(40960) == (Reign(3, 8192), Reign(7, 16384), Reign(9, 32768))
    assert header.earlier_than(32768) == (Reign(3, 8192), Reign(7, 16384))
    assert header.earlier_than(16384) == (Reign(3, 8192),)
    assert dataclasses.replace(header, head=16384).earlier_than(32768) == (Reign(7, 16384),)
    full = dataclasses.replace(
        header, earlier=tuple(Reign(number, 8192 + number) for number in range(REIGNS_MAX))
    )
    assert full.earlier_than(40960) == (*full.earlier[1:], Reign(9, 32768))


@given(st.integers(0, 1 << 50), st.integers(1, 1 << 20))
def test_geometry(position: int, blocks: int) -> None:
    """Places lie in the ring, repeat with each lap, and a lap's end is the first place of the next."""
    geometry = Geometry(blocks * BLOCK_BYTES)
    place = geometry.physical(position)
    assert 2 * BLOCK_BYTES <= place < 2 * BLOCK_BYTES + geometry.ring_bytes
    assert geometry.physical(position + geometry.ring_bytes) == place
    assert position < geometry.lap_end(position) <= position + geometry.ring_bytes
    assert geometry.physical(geometry.lap_end(position)) == 2 * BLOCK_BYTES
    assert align_down(position) <= position <= align_up(position) < position + BLOCK_BYTES
