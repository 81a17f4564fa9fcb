"""Checksums joined without their bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocol.crc32c import crc32c
from millrace.protocol.crc32c_join import crc32c_join


@given(st.binary(max_size=3000), st.binary(max_size=3000))
def test_it_is_the_sum_of_both(first: bytes, second: bytes) -> None:
    """Any two runs, empty ones among them."""
    assert crc32c_join(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) - 1, (5 << 20) + 4097])
def test_large_runs(size: int) -> None:
    """Of the sizes that blocks and parts have, one onto the other."""
    first, second, third = b"first" * 1000, bytes(range(256)) * (size // 256 + 1), b"end"
    second = second[:size]
    both = crc32c_join(crc32c(first), crc32c(second), size)
    assert both == crc32c(second, crc32c(first))
    assert crc32c_join(both, crc32c(third), 3) == crc32c(third, both)


def test_lengths_beyond_any_object() -> None:
    """2**62 bytes of nothing and as many again are 2**63: the map of each power is that of the one below it,
    twice."""
    once = crc32c_join(crc32c(b"x"), 0, 1 << 62)
    assert crc32c_join(once, 0, 1 << 62) == crc32c_join(crc32c(b"x"), 0, 1 << 63) != once
