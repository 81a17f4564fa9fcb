"""Paces of peers, and whose connection ends when memory is used up."""

from __future__ import annotations

import pytest

from millrace.broker.network.pace import (
    HELD_UP_AFTER_S,
    MINIMUM_BYTES_S,
    OBSERVED_S,
    QUICK_BYTES_S,
    Holding,
    Pace,
    plan_endings,
    plan_slow_endings,
)

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


def test_a_pace_is_known_of_who_was_held_up_later() -> None:
    """A sender that filled what the system takes slowly was slow, and stays so while it has to wait for us;
    one that did it at once, or that was never seen going on, is not judged."""
    slow, quick, unseen = Pace(0.0, 0), Pace(0.0, 0), Pace(0.0, 0)
    assert slow.see(0.1, 8_000) is None
    assert slow.see_held_up(0.4, 32_000) == 80_000
    assert slow.see_held_up(9.0, 32_000) == 80_000
    assert quick.see_held_up(HELD_UP_AFTER_S / 2, 64_000) is None
    assert unseen.see_held_up(HELD_UP_AFTER_S, 0) is None
    assert unseen.see_held_up(9.0, 0) is None
    assert unseen.see(9.0 + OBSERVED_S, 1_000_000) == 1_000_000 / OBSERVED_S, (
        "the time that it waited is not its own"
    )


def test_since_when_a_peer_is_at_what_it_is_at() -> None:
    """From the first look at that frame on."""
    pace = Pace(1.0, 0, 100)
    pace.see(2.0, 10, 100)
    assert pace.since_s == 1.0
    pace.see(3.0, 10, 200)
    assert pace.since_s == 3.0


def test_all_slow_ones_together_hold_a_part_only() -> None:
    """Each of them has an address of its own and the least pace: those are ended who have held longest, until
    the rest holds half of the limit. Those who are quick, or not known yet, are not counted; one alone may
    hold more."""
    crowd = [
        Holding(str(age), f"10.0.0.{age}", 20, 20, float(MINIMUM_BYTES_S), 100.0 - age) for age in range(8)
    ]
    others = [Holding("quick", "b", 60, 1, float(QUICK_BYTES_S), 0.0), Holding("new", "c", 60, 1, None, 0.0)]
    assert names(plan_slow_endings([*crowd, *others], 100)) == "7 6 5 4 3 2"
    assert plan_slow_endings([*crowd[:2], *others], 100) == []
    assert plan_slow_endings([Holding("alone", "a", 500, 20, 1.0)], 100) == []
