"""Refusals of new states as the operator is told of them: one line a client and minute, with what to do.

Not here: who is refused (state_memory.py), what the client is answered (the handlers).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from millrace.broker.state_memory import Holder, StateMemory

log = logging.getLogger(__name__)
PERIOD_S = 60.0
CLIENTS_MAX = 1000  # remembered at once


class StateRefusals:
    """`now_s` is the loop's monotonic clock."""

    def __init__(self, now_s: Callable[[], float], memory: StateMemory) -> None:
        self._now_s = now_s
        self._memory = memory
        self._told: dict[str, float] = {}

    def note(self, holder: Holder, what: str) -> None:
        """The holder was refused to make that."""
        now_s = self._now_s()
        if now_s - self._told.get(holder.name, float("-inf")) < PERIOD_S:
            return
        if len(self._told) >= CLIENTS_MAX:
            self._told.clear()
        self._told[holder.name] = now_s
        log.warning(
            "states: %s is refused %s, since it holds %d of the %d bytes in use, and %d are the bound "
            "(states.memory.max.bytes): let it make fewer groups or producers, or raise the bound",
            holder.name or "a client",
            what,
            holder.held_bytes,
            self._memory.used_bytes,
            self._memory.limit_bytes,
        )
