"""Long decisions as generators that stop every few milliseconds, so that others may run between. Pure."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Yielding = Generator[None, None, T]


def run_to_end(generator: Yielding[T]) -> T:
    """What it returns, nobody running between."""
    while True:
        try:
            next(generator)
        except StopIteration as end:
            found: T = end.value
            return found
