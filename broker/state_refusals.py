"""Refusals of new states as the operator is told of them: one line a client and minute, with what to do.

Not here: who is refused (state_memory.py), what the client is answered (the handlers).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from millrace.broker.state_memory import Holder, StateMemory
from millrace.broker.told import Told

log = logging.getLogger(__name__)


class StateRefusals:
    """`now_s` is the loop's monotonic clock."""

    def __init__(self, now_s: Callable[[], float], memory: StateMemory) -> None:
        self._now_s = now_s
        self._memory = memory
        self._told = Told()

    def note(self, holder: Holder, what: str) -> None:
        """The holder was refused to make that."""
        if not self._told.is_due(holder.name, self._now_s()):
            return
        log.warning(
            "states: %s is refused %s, since it holds %d of the %d bytes in use, and %d are the bound "
            "(states.memory.max.bytes): let it make fewer groups or producers, or raise the bound",
            holder.name or "a client",
            what,
            holder.held_bytes,
            self._memory.used_bytes,
            self._memory.limit_bytes,
        )
