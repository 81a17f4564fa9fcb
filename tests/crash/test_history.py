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
    """Everything acknowledged is at its place, once, in order."""
    assert history().findings(GOOD) == []


@pytest.mark.parametrize(
    ("read", "finding"),
    [
        (GOOD[:2], "lost-write"),
        ([*GOOD, (0, 3, b"a")], "duplicate"),
        ([*GOOD, (0, 2, b"x")], "inconsistent-offsets"),
        ([(0, 0, b"b"), (0, 1, b"a"), (0, 2, b"c")], "nonmonotonic-send"),
    ],
)
def test_each_fault_is_found(read: list[tuple[int, int, bytes]], finding: str) -> None:
    """One fault of each kind, each found by its name."""
    assert any(line.startswith(finding) for line in history().findings(read))
