"""Long decisions in steps: a generator that stops every few milliseconds, so that others may run between.
Pure."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


def finished(steps: Steps[T]) -> T:
    """What the steps come to, without a pause between them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
