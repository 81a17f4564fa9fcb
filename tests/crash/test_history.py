"""The checker of histories sees what it is there to see."""

from __future__ import annotations

import pytest

from tests.crash.history import History

GOOD = [(0, 0, b"a"), (0, 1, b"b"), (0, 2, b"c")]


def history() -> History:
    told = History()
    for offset, value in enumerate((b"a", b"b", b"c")):
        told.on_sent(0, value)
        told.on_acknowledged(value, (0, offset))
    return told


def test_a_log_that_agrees_has_no_findings() -> None:
    """Everything acknowledged is at its place, once, in order; what was sent and not acknowledged may be
    there, or not."""
    told = history()
    told.on_sent(0, b"d")
    assert told.findings(GOOD) == []
    assert told.findings([*GOOD, (0, 3, b"d")]) == []


@pytest.mark.parametrize(
    ("read", "finding"),
    [
        (GOOD[:2], "lost-write"),
        ([*GOOD, (0, 3, b"a")], "duplicate"),
        ([*GOOD, (0, 2, b"x")], "inconsistent-offsets"),
        ([*GOOD, (0, 3, b"x")], "never-sent"),
        ([*GOOD, (1, 0, b"c")], "never-sent"),
        ([*GOOD, (0, 4, b"d")], "gap: nothing at 3 to 3"),
        ([*GOOD, (1, 2, b"d")], "gap: nothing at 0 to 1 of partition 1"),
        ([(0, 0, b"b"), (0, 1, b"a"), (0, 2, b"c")], "nonmonotonic-send"),
    ],
)
def test_each_fault_is_found(read: list[tuple[int, int, bytes]], finding: str) -> None:
    """One fault of each kind, each found by its name."""
    assert any(line.startswith(finding) for line in history().findings(read))
