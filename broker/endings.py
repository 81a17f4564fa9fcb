"""Endings: how the parts of a process end, in reverse order of their start."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)
End = Callable[[], Awaitable[object]]


class Endings:
    def __init__(self) -> None:
        self._waiting: list[tuple[str, End]] = []

    def add(self, name: str, end: End) -> None:
        """Of a part that was started now, or is about to be: what ends a start that failed half-way, too."""
        self._waiting.append((name, end))

    async def run(self) -> None:
        """One that fails to end does not keep the others. Again, it does what was added since."""
        while self._waiting:
            name, end = self._waiting.pop()
            try:
                await end()
            except Exception:
                log.exception("%s did not end in order", name)
