"""Which blocks share a GET."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.s3stream.ids import StreamId
from millrace.s3stream.objects.format import BlockRef
from millrace.s3stream.read_plan import plan_gets


def ref(position: int, size_bytes: int) -> BlockRef:
    return BlockRef(StreamId(1), position, position + 1, 1, position, size_bytes)


def spans(places: list[tuple[int, int]], bytes_max: int) -> list[tuple[int, int]]:
    runs = plan_gets([ref(*place) for place in places], bytes_max)
    return [(run[0].position, run[-1].position + run[-1].size_bytes) for run in runs]


def test_near_blocks_share_a_get() -> None:
    """Side by side, or with a gap of at most half of what comes; in any order of asking; never above the
    bound but for one block alone."""
    assert spans([(10, 10), (0, 10), (20, 5)], 100) == [(0, 25)]
    assert spans([(0, 10), (30, 10)], 100) == [(0, 40)]
    assert spans([(0, 10), (31, 10)], 100) == [(0, 10), (31, 41)]
    assert spans([(0, 10), (30, 10), (55, 10)], 100) == [(0, 40), (55, 65)], "what is wasted already counts"
    assert spans([(0, 10), (10, 10), (20, 10)], 20) == [(0, 20), (20, 30)]
    assert spans([(0, 500), (500, 10)], 100) == [(0, 500), (500, 510)]
    assert spans([], 100) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), max_size=20), st.integers(1, 500))
def test_every_block_comes_once_within_the_bounds(gaps: list[tuple[int, int]], bytes_max: int) -> None:
    """No block is lost or read twice; no GET of several blocks is above the bound or wastes more than
    half."""
    refs: list[BlockRef] = []
    position = 0
    for gap, size_bytes in gaps:
        refs.append(ref(position + gap, size_bytes))
        position += gap + size_bytes
    runs = plan_gets(reversed(refs), bytes_max)
    assert [found for run in runs for found in run] == refs
    for run in runs:
        span = run[-1].position + run[-1].size_bytes - run[0].position
        assert len(run) == 1 or span <= bytes_max
        assert 2 * (span - sum(found.size_bytes for found in run)) <= span
