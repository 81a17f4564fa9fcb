"""How many calls a piece of work takes: a cost that neither a slow nor a busy machine changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def calls_below(bound: float) -> Iterator[None]:
    """Calls and returns, of Python's functions and of others, in this thread."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert calls < bound, f"{calls:,} calls"
