"""What the node waits for, said to who wonders: on the ready page at once, in the log when it takes long.

A start has stages; each may wait for the object store, without end, since a store that is late is no reason
to give up. Retries of the store are logged by their first and then once in a while, not one by one. Not here:
what is waited for, and for how long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

SAY_EVERY_S = 5.0
RETRIES_EVERY_S = 10.0


class StartWatch:
    """`stage` is "" once the node is started. `blocked_reason` is why uploads wait, once there are any,
    `wal_reason` why nothing can be acknowledged, `held_reason` why acknowledgements wait for a look at the
    node's claims, `undecided_reason` why no command is decided."""

    def __init__(self) -> None:
        self.stage = "starting"
        self.blocked_reason: Callable[[], str] = lambda: ""
        self.wal_reason: Callable[[], str] = lambda: ""
        self.held_reason: Callable[[], str] = lambda: ""
        self.undecided_reason: Callable[[], str] = lambda: ""
        self._retry = ""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def reason(self) -> str:
        """Why the node is not ready; "" when it is."""
        if not self.stage:
            held_up = self.wal_reason()
            return (
                f"the write-ahead log cannot be written, and nothing is acknowledged: {held_up}"
                if held_up
                else ""
            )
        trouble = self.blocked_reason() or self._retry
        return f"{self.stage} ({trouble})" if trouble else self.stage

    def enter(self, stage: str) -> None:
        self.stage, self._retry = stage, ""
        self._wind()

    def leave(self) -> None:
        """The node is ready."""
        self.stage = ""
        if self._timer is not None:
            self._timer.cancel()

    def on_retry(self, operation: str, attempts: int, error: BaseException) -> None:
        self._retry = f"{operation} failed {attempts} times: {error}"

    def _wind(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(SAY_EVERY_S, self._say)

    def _say(self) -> None:
        log.warning("not ready: %s", self.reason)
        self._wind()


class RetryLog:
    """Says that the store is asked again: the first time, and at most every RETRIES_EVERY_S."""

    def __init__(self) -> None:
        self._unsaid_count = 0
        self._said_at: float | None = None

    def on_retry(self, operation: str, attempts: int, error: BaseException) -> None:
        now = asyncio.get_running_loop().time()
        self._unsaid_count += 1
        if self._said_at is None or now - self._said_at >= RETRIES_EVERY_S:
            log.warning(
                "object store: %s failed and is tried again (%d failures since this was said last): %s",
                operation,
                self._unsaid_count,
                error,
            )
            self._said_at, self._unsaid_count = now, 0
