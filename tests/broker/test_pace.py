"""Paces of peers, and whose connection ends when memory is used up."""

from __future__ import annotations

import pytest

from millrace.broker.pace import MINIMUM_BYTES_S, OBSERVED_S, Holding, Pace, plan_endings

MIB = 1 << 20


def names(holdings: list[Holding[str]]) -> str:
    return " ".join(holding.who for holding in holdings)


def test_a_pace_is_known_after_a_while_and_is_of_late() -> None:
    """Nothing is said before OBSERVED_S; a peer that was fast and stopped is slow within twice that."""
    pace = Pace(0.0, 0)
    assert pace.see(OBSERVED_S / 2, 1000) is None
    assert pace.see(OBSERVED_S, 500_000) == 500_000 / OBSERVED_S
    assert (pace.see(2 * OBSERVED_S, 500_000) or 0) > 0
    assert pace.see(3 * OBSERVED_S, 500_000) == 0


@pytest.mark.parametrize(
    ("rest_bytes", "bytes_s", "is_ended"),
    [
        (1000, None, False),
        (1000, MINIMUM_BYTES_S - 1.0, True),
        (1000, float(MINIMUM_BYTES_S), False),
        (100 * MIB, float(MIB), True),
        (100 * MIB, 11.0 * MIB, False),
    ],
)
def test_the_least_pace(rest_bytes: int, bytes_s: float | None, is_ended: bool) -> None:
    """A minimum for all, more for whom much is missing, none for those of whom nothing is known."""
    holding = Holding("one", "a", 2 * MIB, rest_bytes, bytes_s)
    assert plan_endings([holding], 2 * MIB, MIB, 10.0) == ([holding] if is_ended else [])


def test_as_many_are_ended_as_are_needed_and_those_of_the_greatest_address_first() -> None:
    """Of an address the slowest for what is left; a single slow one elsewhere stays."""
    holdings = [
        Holding("lone", "b", 10, 10, 0.0),
        Holding("half", "a", 30, 100, 50.0),
        Holding("still", "a", 30, 100, 0.0),
        Holding("quick", "a", 30, 100, 1e9),
    ]
    assert names(plan_endings(holdings, 100, 100, 10.0)) == "still"
    assert names(plan_endings(holdings, 120, 100, 10.0)) == "still half"
    assert names(plan_endings(holdings, 1000, 100, 10.0)) == "still half lone"
    assert plan_endings(holdings, 75, 100, 10.0) == []
