"""What a node that serves has to wait for: said again each minute, measured, and over when it is.

Two things can be held up by a store that is away: the write-ahead log, without which nothing is acknowledged,
and uploads, without which the WAL fills. Whoever waits says why at once, in its own log line; here it is
looked at every LOOK_EVERY_S. Not here: what is done about it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millrace.protocol.dataclass import dataclass

log = logging.getLogger(__name__)
LOOK_EVERY_S = 5.0
SAY_EVERY_S = 60.0
UNREADY_S = 10.0  # one request that is tried again is no outage


@dataclass(slots=True)
class Outage:
    """Of one thing. `reason` gives "" while it goes on."""

    what: str
    means: str
    reason: Callable[[], str]
    since_s: float | None = None
    said_s: float = 0.0

    def look(self, now_s: float) -> None:
        reason = self.reason()
        if not reason:
            if self.since_s is not None and self.said_s > self.since_s:
                log.info("%s go on after %.0f s", self.what, now_s - self.since_s)
            self.since_s = None
        elif self.since_s is None:
            self.since_s = self.said_s = now_s
        elif now_s - self.said_s >= SAY_EVERY_S:
            self.said_s = now_s
            log.warning(
                "%s have waited for %.0f s: %s; %s", self.what, now_s - self.since_s, reason, self.means
            )

    def seconds(self) -> float:
        """For how long it has waited; 0: it does not."""
        if not self.reason():
            return 0.0
        now_s = asyncio.get_running_loop().time()
        return now_s - (now_s if self.since_s is None else self.since_s)


class OutageWatch:
    def __init__(self, wal_reason: Callable[[], str], upload_reason: Callable[[], str]) -> None:
        self.wal = Outage(
            "writes of the write-ahead log", "nothing is acknowledged until its store answers", wal_reason
        )
        self.uploads = Outage("uploads", "producers wait once the write-ahead log is full", upload_reason)

    def unready_reason(self) -> str:
        """Why the node cannot be called ready: its write-ahead log has waited for some time. "" else."""
        return self.wal.reason() if self.wal.seconds() >= UNREADY_S else ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now_s = asyncio.get_running_loop().time()
            self.wal.look(now_s)
            self.uploads.look(now_s)
