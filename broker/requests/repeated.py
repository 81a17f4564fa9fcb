"""Questions that one request asks more than once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")


def unmet(part: Iterable[T], met: set[Hashable], key: Callable[[T], Hashable]) -> list[T]:
    """Those whose key was not met before, in order; `met` knows them from now on. A question that is asked
    again in the same request is answered once: a few bytes of a name may ask for megabytes."""
    found = []
    for item in part:
        named = key(item)
        if named not in met:
            met.add(named)
            found.append(item)
    return found
