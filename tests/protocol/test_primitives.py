"""Varints and tagged sections, at their edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocol.errors import WireError
from millrace.protocol.primitives import (
    READ_ERRORS,
    check_count,
    read_compact_count,
    read_compact_string,
    read_string,
    read_uvarint,
    read_uvarlong,
    read_varint,
    read_varlong,
    skip_tags,
    string_bytes,
    tag_section,
    uuid_field,
    uvarint,
    varint,
)

UNSIGNED = [
    (0, "00"),
    (1, "01"),
    (127, "7f"),
    (128, "8001"),
    (300, "ac02"),
    (16_383, "ff7f"),
    (16_384, "808001"),
    (2_097_151, "ffff7f"),
    (2_097_152, "80808001"),
    (0xFFFF_FFFF, "ffffffff0f"),
]
SIGNED = [(0, "00"), (-1, "01"), (1, "02"), (-64, "7f"), (64, "8001"), (-(1 << 31), "ffffffff0f")]


@pytest.mark.parametrize(("value", "text"), UNSIGNED)
def test_unsigned_table(value: int, text: str) -> None:
    """One table drives both directions."""
    raw = bytes.fromhex(text)
    assert uvarint(value) == raw
    assert read_uvarint(b"\xff" + raw, 1) == (value, 1 + len(raw))
    assert read_uvarlong(raw, 0) == (value, len(raw))


@pytest.mark.parametrize(("value", "text"), SIGNED)
def test_signed_table(value: int, text: str) -> None:
    """Zig-zag: small numbers of either sign are short."""
    raw = bytes.fromhex(text)
    assert varint(value) == raw
    assert read_varint(raw, 0) == (value, len(raw))
    assert read_varlong(raw, 0) == (value, len(raw))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_any_long_round_trips(value: int) -> None:
    """64 bits fit in ten bytes."""
    raw = varint(value)
    assert len(raw) <= 10
    assert read_varlong(raw, 0) == (value, len(raw))


@pytest.mark.parametrize("text", ["80808080801f", "ffffffffff01", "8080808010", "ffffffff1f"])
def test_varints_are_bounded(text: str) -> None:
    """Neither a sixth byte nor a 33rd bit."""
    with pytest.raises(WireError):
        read_uvarint(bytes.fromhex(text), 0)


@pytest.mark.parametrize("text", ["80" * 10 + "01", "ff" * 9 + "02"])
def test_varlongs_are_bounded(text: str) -> None:
    """Neither an eleventh byte nor a 65th bit."""
    with pytest.raises(WireError):
        read_uvarlong(bytes.fromhex(text), 0)


def test_a_cut_varint_is_a_read_error() -> None:
    """The end of the buffer shows as one of the errors that decoders turn into WireError."""
    with pytest.raises(READ_ERRORS):
        read_uvarint(b"\x80", 0)


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_numbers_that_no_varint_holds(value: int) -> None:
    """A mistake of ours is a ValueError."""
    with pytest.raises(ValueError):
        uvarint(value)
    with pytest.raises(ValueError):
        varint(value << 64)


@given(st.lists(st.tuples(st.integers(0, 500), st.binary(max_size=200)), max_size=5))
def test_tagged_sections_are_stepped_over(tagged: list[tuple[int, bytes]]) -> None:
    """Whatever a section holds, reading goes on behind it; and a cut one is refused."""
    raw = tag_section(tagged)
    assert skip_tags(raw + b"rest", 0, len(raw) + 4) == len(raw)
    for length in range(len(raw)):
        with pytest.raises((WireError, IndexError)):
            skip_tags(raw[:length], 0, length)


def test_tagged_sections_are_bounded() -> None:
    """Ten thousand fields, not one more."""
    assert skip_tags(uvarint(10_000) + b"\0\0" * 10_000, 0, 30_000) == 20_002
    with pytest.raises(WireError):
        skip_tags(uvarint(10_001) + b"\0\0" * 10_001, 0, 30_000)


@pytest.mark.parametrize(
    ("count", "least", "left"), [(-1, 1, 10), (11, 1, 10), (3, 4, 11), (1_000_001, 0, 1 << 40)]
)
def test_counts_are_bounded(count: int, least: int, left: int) -> None:
    """Null, beyond the bytes that are left, beyond the bound."""
    with pytest.raises(WireError):
        check_count(count, least, left)
    check_count(min(max(count, 0), 2), least, left)


def test_strings() -> None:
    """Both forms, their nulls and their ends."""
    assert read_string(memoryview(b"\0\x02ab!"), 0, 5) == ("ab", 4)
    assert read_compact_string(memoryview(b"\x03ab!"), 0, 4) == ("ab", 3)
    assert read_compact_string(memoryview(b"\xc9\x01" + b"x" * 200), 0, 202) == ("x" * 200, 202)
    assert read_compact_count(memoryview(b"\xc9\x01" + b"x" * 200), 0, 1, 202) == (200, 2)
    for raw in (b"\xff\xff", b"\0\x03ab"):
        with pytest.raises(WireError):
            read_string(memoryview(raw), 0, len(raw))
    for raw in (b"\0", b"\x04ab", uvarint(32_769) + bytes(32_768)):
        with pytest.raises(WireError):
            read_compact_string(memoryview(raw), 0, len(raw))


def test_what_would_be_cut_in_silence_is_refused() -> None:
    """struct pads and cuts bytes to size, and an int16 cannot tell a long string's length."""
    assert string_bytes("é") == b"\xc3\xa9"
    assert uuid_field(bytes(16)) == bytes(16)
    with pytest.raises(ValueError):
        string_bytes("x" * 32_768)
    with pytest.raises(ValueError):
        uuid_field(bytes(15))
