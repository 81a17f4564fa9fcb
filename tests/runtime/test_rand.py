"""Chance that a run is replayed from."""

from __future__ import annotations

import random

import pytest

from millrace.runtime.rand import Rand


def test_below_draws_what_the_library_draws() -> None:
    """Seeds that were noted stay the runs that they were."""
    own, library = Rand(b"seed"), random.Random(b"seed")
    bounds = [1, 2, 3, 7, 255, 256, 257, 1_000, 1 << 40, (1 << 64) + 1] * 50
    assert [own.below(bound) for bound in bounds] == [library.randrange(bound) for bound in bounds]


@pytest.mark.parametrize("bound", [0, -1])
def test_nothing_is_below_nothing(bound: int) -> None:
    """It is refused, and draws nothing."""
    own = Rand(b"seed")
    with pytest.raises(ValueError, match="nothing is below"):
        own.below(bound)
    assert own.below(1_000) == Rand(b"seed").below(1_000)
