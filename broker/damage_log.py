"""Damaged records as the operator is told of them: one line an object and period, however often a consumer asks again.

A damaged object fails the reads that need it and nothing else, so this line is all there is to see on this side. Not here: the answer
that the consumer gets (the handlers).
"""

from __future__ import annotations

import logging

from millrace.runtime.errors import Corrupt

log = logging.getLogger(__name__)
PERIOD_S = 60.0
OBJECTS_MAX = 1000  # remembered at once


class DamageLog:
    """`now_s` is the loop's monotonic time."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def note(self, now_s: float, what: str, error: Exception) -> None:
        """A read of `what` failed; only stored bytes that fail their check, or are gone, are told."""
        if not isinstance(error, Corrupt):
            return
        key = str(error)
        if now_s - self._told.get(key, float("-inf")) < PERIOD_S:
            return
        if len(self._told) >= OBJECTS_MAX:
            self._told.clear()
        self._told[key] = now_s
        log.error("%s cannot be read: %s", what, error)
