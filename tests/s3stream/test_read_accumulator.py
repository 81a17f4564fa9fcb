"""What a fetch gathers: table of budgets and borders."""

from __future__ import annotations

import pytest

from millrace.s3stream.errors import OffsetGap
from millrace.s3stream.objects.format import Entry
from millrace.s3stream.read_accumulator import ReadAccumulator
from tests.s3stream.build import shown


def entries(*spans: tuple[int, int]) -> list[Entry]:
    """Each of ten bytes."""
    return [Entry(base, end - base, memoryview(bytes(10))) for base, end in spans]


@pytest.mark.parametrize(
    ("start", "end", "max_bytes", "expected", "is_full"),
    [
        (0, 9, 100, "[0,3) [3,4) [4,9)", True),
        (0, 10, 100, "[0,3) [3,4) [4,9)", False),
        (0, 9, 25, "[0,3) [3,4)", True),
        (0, 9, 20, "[0,3) [3,4)", True),
        (0, 9, 0, "[0,3)", True),
        (2, 4, 100, "[0,3) [3,4)", True),
        (2, 3, 100, "[0,3)", True),
        (0, 0, 100, "nothing", True),
    ],
)
def test_bounds(start: int, end: int, max_bytes: int, expected: str, is_full: bool) -> None:
    """The first entry is taken whole, later ones while they begin before the end and fit."""
    accumulator = ReadAccumulator(1, start, end, max_bytes)
    accumulator.take(entries((0, 3), (3, 4), (4, 9)))
    assert shown(accumulator.entries).replace("\0", "") == expected
    assert accumulator.is_full == is_full


def test_it_goes_on_where_it_stopped() -> None:
    """Several sources fill one accumulator; what does not continue is refused, and what was taken stays."""
    accumulator = ReadAccumulator(1, 0, 100, 100)
    accumulator.take(entries((0, 3)))
    accumulator.take(entries((3, 5)))
    with pytest.raises(OffsetGap) as raised:
        accumulator.take(entries((5, 6), (7, 8)))
    assert (raised.value.stream_id, raised.value.expected, raised.value.found) == (1, 6, 7)
    assert (
        shown(accumulator.entries).replace("\0", ""),
        accumulator.next_offset,
        accumulator.left_bytes,
    ) == (
        "[0,3) [3,5) [5,6)",
        6,
        70,
    )


@pytest.mark.parametrize("spans", [[(4, 5)], [(0, 3)], [(3, 6)]])
def test_the_first_entry_must_hold_the_start(spans: list[tuple[int, int]]) -> None:
    """An entry behind the start, or wholly before it, is not what was asked for."""
    accumulator = ReadAccumulator(1, 3, 9, 100)
    if spans == [(3, 6)]:
        accumulator.take(entries(*spans))
        assert accumulator.next_offset == 6
    else:
        with pytest.raises(OffsetGap):
            accumulator.take(entries(*spans))


def test_what_another_accumulator_gathered_is_adopted() -> None:
    """It ends as if it had taken the entries itself; one that began elsewhere is refused."""
    whole, part = ReadAccumulator(1, 2, 9, 100), ReadAccumulator(1, 2, 6, 100)
    entries = [Entry(base, 1, memoryview(bytes(10))) for base in range(2, 6)]
    part.take(entries)
    whole.adopt(part)
    assert (whole.entries, whole.next_offset, whole.left_bytes, whole.is_full) == (entries, 6, 60, False)
    with pytest.raises(OffsetGap):
        whole.adopt(part)
    last = ReadAccumulator(1, 6, 9, 60)
    last.take([Entry(6, 3, memoryview(bytes(60)))])
    whole.adopt(last)
    assert whole.is_full
