"""What compressed bytes may come to at most: never less than they do, and as little as frames state."""

from __future__ import annotations

import struct

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocol.batch_build import build_batch
from millrace.protocol.batches import (
    FROM_CRC,
    HEADER_BYTES,
    Codec,
    ProduceRules,
    check_produced_batch,
    seal_batch,
)
from millrace.protocol.codec_bounds import (
    BLOCKS_WALKED_MAX,
    GZIP_RATIO_MAX,
    LZ4_RATIO_MAX,
    SNAPPY_RATIO_MAX,
    ZSTD_RATIO_MAX,
    unpacked_bytes_max,
)
from millrace.protocol.compression import compress, decompress
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError, WireError
from millrace.protocol.records import Record

NOW_MS = 1_700_000_000_000
COMPRESSED = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
ZEROS = bytes(3_000_000)


@pytest.mark.parametrize("codec", Codec)
@given(st.binary(max_size=3000), st.integers(1, 50))
def test_nothing_comes_to_more_than_its_bound(codec: Codec, data: bytes, times: int) -> None:
    """Whatever was compressed, the bound is at least what comes out."""
    packed = compress(codec, data * times)
    assert len(decompress(codec, packed)) <= unpacked_bytes_max(codec, packed)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_what_is_all_zeros_keeps_below_its_bound(codec: Codec) -> None:
    """What compresses best is within the best ratio."""
    assert unpacked_bytes_max(codec, compress(codec, ZEROS)) >= len(ZEROS)


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (Codec.ZSTD, zstandard.ZstdCompressor().compress(ZEROS)),
        (Codec.ZSTD, zstandard.ZstdCompressor().compress(ZEROS[:200])),
        (Codec.ZSTD, zstandard.ZstdCompressor().compress(ZEROS[:2000])),
        (Codec.LZ4, lz4.frame.compress(ZEROS, store_size=True)),
        (Codec.SNAPPY, snappy.compress(ZEROS)),
        (Codec.SNAPPY, compress(Codec.SNAPPY, ZEROS)),
        (Codec.NONE, ZEROS),
    ],
)
def test_a_size_that_a_frame_states_is_the_bound(codec: Codec, data: bytes) -> None:
    """Where the format states how much comes out, no more is believed."""
    assert unpacked_bytes_max(codec, data) == len(decompress(codec, data))


def test_frames_add_up() -> None:
    """Several frames in a row, and skippable ones between them, may hold the sum of what each may."""
    frame = zstandard.ZstdCompressor().compress(ZEROS[:500])
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"notes"
    assert unpacked_bytes_max(Codec.ZSTD, frame + skippable + frame) == 1000


@pytest.mark.parametrize(
    ("codec", "ratio"),
    [
        (Codec.GZIP, GZIP_RATIO_MAX),
        (Codec.LZ4, LZ4_RATIO_MAX),
        (Codec.ZSTD, ZSTD_RATIO_MAX),
        (Codec.SNAPPY, SNAPPY_RATIO_MAX),
    ],
)
def test_the_walk_is_bounded(codec: Codec, ratio: int) -> None:
    """More blocks than any codec makes are not walked: the ratio decides."""
    blocks = BLOCKS_WALKED_MAX + 1
    data = {
        Codec.GZIP: b"\x1f\x8b" * blocks,
        Codec.LZ4: lz4.frame.compress(b"")[:7] + (struct.pack("<I", 1) + b"x") * blocks,
        Codec.ZSTD: b"\x28\xb5\x2f\xfd\x00\x38" + b"\x08\0\0x" * blocks,
        Codec.SNAPPY: compress(Codec.SNAPPY, b"")[:16] + (struct.pack(">i", 2) + b"\x7f\x00") * blocks,
    }[codec]
    assert unpacked_bytes_max(codec, data) == ratio * len(data)


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (Codec.SNAPPY, b"\xff" * 60),
        (Codec.SNAPPY, compress(Codec.SNAPPY, b"x")[:18]),
        (Codec.SNAPPY, compress(Codec.SNAPPY, b"x")[:16] + b"\xff\xff\xff\xff"),
        (Codec.LZ4, b"\x1f" * 60),
        (Codec.LZ4, b"\x04\x22\x4d\x18\x00\x00"),
        (Codec.LZ4, lz4.frame.compress(b"words")[:10]),
        (Codec.ZSTD, b"\x1f" * 60),
        (Codec.ZSTD, b"\x28\xb5\x2f\xfd"),
        (Codec.ZSTD, zstandard.ZstdCompressor().compress(b"words")[:9]),
    ],
)
def test_frames_that_are_none_are_malformed(codec: Codec, data: bytes) -> None:
    """Junk and frames cut off have no bound."""
    with pytest.raises(WireError):
        unpacked_bytes_max(codec, data)


@pytest.mark.parametrize("codec", Codec)
@given(st.binary(max_size=200))
def test_any_bytes_have_a_bound_or_are_malformed(codec: Codec, data: bytes) -> None:
    """Nothing but a WireError comes out."""
    try:
        assert 0 <= unpacked_bytes_max(codec, data) <= ZSTD_RATIO_MAX * len(data)
    except WireError:
        pass


def counted(codec: int, payload: bytes, count: int) -> int:
    """The code for a batch whose header counts so many records."""
    body = FROM_CRC.pack(codec, count - 1, NOW_MS, NOW_MS, -1, -1, -1, count)
    try:
        check_produced_batch(memoryview(seal_batch(0, -1, body, payload)), ProduceRules(), NOW_MS, 12)
    except KafkaError as error:
        return error.code
    return 0


@pytest.mark.parametrize("codec", Codec)
def test_a_count_is_bounded_by_what_the_bytes_can_hold(codec: Codec) -> None:
    """As many of the smallest records as may come out are taken, one more is INVALID_RECORD; small records
    that compress well are taken."""
    payload = compress(codec, bytes(70_000))
    most = unpacked_bytes_max(codec, payload) // 7
    assert [counted(codec, payload, count) for count in (1, most, most + 1, (1 << 31) - 1)] == [0, 0, 87, 87]
    batch = build_batch([Record(None, None, NOW_MS)] * 5000, codec=codec)
    assert len(batch) - HEADER_BYTES < 7 * 5000 or codec == Codec.NONE
    check_produced_batch(memoryview(batch), ProduceRules(), NOW_MS, 12)


@pytest.mark.parametrize("codec", COMPRESSED[1:])
def test_junk_holds_no_more_than_its_bytes(codec: Codec) -> None:
    """Where frames cannot be walked, a count that the bytes alone could not hold is refused; no other is
    looked at."""
    assert [counted(codec, b"\xff" * 70, count) for count in (10, 11)] == [0, ErrorCode.INVALID_RECORD]
