"""Frames come out whole and in order, however the bytes were cut, and a length alone costs nothing."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocol.errors import WireError
from millrace.protocol.frame import FrameSplitter


def framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=8))
def test_any_cut_gives_the_same_frames(frames: list[bytes], cuts: list[int]) -> None:
    """Wherever the stream is cut into chunks, the frames are the same."""
    stream = framed(*frames)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    splitter = FrameSplitter(100)
    found = [bytes(frame) for start, end in pairwise(edges) for frame in splitter.feed(stream[start:end])]
    assert found == frames
    assert splitter.pending_bytes == 0


@given(
    st.lists(st.binary(max_size=40), max_size=12),
    st.lists(st.integers(0, 300), max_size=4),
    st.integers(1, 5),
)
def test_few_frames_are_cut_at_once(frames: list[bytes], cuts: list[int], count_max: int) -> None:
    """What lies behind them waits, also where more is fed before it is asked for."""
    stream = framed(*frames)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    splitter, found = FrameSplitter(100, count_max=count_max), []
    for start, end in pairwise(edges):
        cut = splitter.feed(stream[start:end])
        assert len(cut) <= count_max + 1  # the one that the chunk before began
        found += map(bytes, cut)
        splitter.rest = bytes(splitter.rest)
    while splitter.rest:
        cut = splitter.go_on()
        assert 0 < len(cut) <= count_max
        found += map(bytes, cut)
    assert found == frames
    assert splitter.pending_bytes == 0


def test_a_length_out_of_bounds_is_met_in_the_rest() -> None:
    splitter = FrameSplitter(100, count_max=2)
    assert len(splitter.feed(framed(b"a", b"b") + (101).to_bytes(4, "big"))) == 2
    with pytest.raises(WireError):
        splitter.go_on()
    assert "101" in splitter.fault


def test_byte_by_byte() -> None:
    """One byte at a time is enough, also through the length itself."""
    stream = framed(b"", b"a", b"bcd" * 20)
    splitter = FrameSplitter(100)
    assert [bytes(f) for i in range(len(stream)) for f in splitter.feed(stream[i : i + 1])] == [
        b"",
        b"a",
        b"bcd" * 20,
    ]


def test_whole_frames_are_views_of_their_chunk() -> None:
    """A frame that lies whole in one chunk is not copied."""
    chunk = framed(b"x" * 10, b"y" * 10)
    first, second = FrameSplitter(100).feed(chunk)
    assert isinstance(first, memoryview)
    assert isinstance(second, memoryview)
    assert first.obj is chunk
    assert second.obj is chunk


def test_pending_bytes_tells_the_announced_length() -> None:
    """As soon as a length is here, so is the figure that the memory budget charges."""
    splitter = FrameSplitter(1000)
    splitter.feed(framed(b"x" * 500)[:3])
    assert splitter.pending_bytes == 0
    splitter.feed(framed(b"x" * 500)[3:10])
    assert splitter.pending_bytes == 500


@pytest.mark.parametrize("length", [-1, -(1 << 31), 101, (1 << 31) - 1])
@pytest.mark.parametrize("split", [4, 2])
def test_lengths_outside_the_bound_are_refused(length: int, split: int) -> None:
    """A negative or too large length is a WireError, whole or in two pieces."""
    prefix = length.to_bytes(4, "big", signed=True)
    splitter = FrameSplitter(100)
    with pytest.raises(WireError):
        splitter.feed(prefix[:split]) + splitter.feed(prefix[split:])


def test_a_promised_length_allocates_nothing() -> None:
    """Two gigabytes announced and ten bytes sent cost nearly nothing."""
    splitter = FrameSplitter((1 << 31) - 1)
    tracemalloc.start()
    splitter.feed(((1 << 31) - 1).to_bytes(4, "big") + bytes(10))
    _now, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_frames_of_nothing_are_refused_at_the_first() -> None:
    """Where a least length is given nothing is cut of a thousand that are below it; one that has it
    passes."""
    splitter = FrameSplitter(100, 10)
    assert [bytes(frame) for frame in splitter.feed(framed(b"x" * 10))] == [b"x" * 10]
    with pytest.raises(WireError, match="frame of 0 bytes"):
        splitter.feed(bytes(4) * 1000)


def test_what_is_whole_before_a_bad_length_is_cut() -> None:
    """It is told of behind them."""
    splitter = FrameSplitter(100, 10)
    good = [b"x" * 10, b"y" * 20]
    assert [bytes(frame) for frame in splitter.feed(framed(*good, b"z"))] == good
    assert splitter.fault == "frame of 1 bytes, the bounds are 10 and 100"
