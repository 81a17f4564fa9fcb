"""Bugs that are planted on purpose are found: a short form of `make sim-bugs`."""

from __future__ import annotations

import pytest

from tests.sim.bugs import BUGS, find_bug


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ack-out-of-order", "ack-before-durable"),
        ("trim-too-early", "trimmed-too-early"),
        ("commit-before-put", "commit-before-put"),
        ("epoch-not-raised", "epoch-not-raised"),
    ],
)
def test_a_planted_bug_is_found(name: str, kind: str) -> None:
    """By the checker that is there for it, within a few seeds."""
    hunted = find_bug(name, 6)
    assert hunted.outcome is not None, f"not in {hunted.seeds} seeds"
    assert kind in {line.partition(":")[0] for line in hunted.outcome.findings}


def test_planting_is_undone() -> None:
    """After a hunt the product is as it was."""
    for bug in BUGS.values():
        for owner, name, _ in ((bug.owner, bug.name, None), *bug.also):
            before = vars(owner)[name]
            with bug.planted():
                assert vars(owner)[name] is not before
            assert vars(owner)[name] is before
