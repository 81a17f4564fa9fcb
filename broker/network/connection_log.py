"""Why connections ended, one line each, at a bounded rate; and what it is that talks to us when it is not
Kafka's protocol.

Pure but for the logger. The first LINES_MAX lines of a period are written, the rest are counted and the count
is written with the first line of a later period, so that a peer that connects in a loop cannot fill a disk.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)
LINES_MAX = 10
PERIOD_S = 10.0

_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI ")


def describe_greeting(first_bytes: bytes) -> str:
    """What the first bytes of a connection look like, "" for nothing known."""
    if first_bytes[:4] in _HTTP:
        return "looks like HTTP: this is a Kafka listener"
    if first_bytes[:2] == b"\x16\x03" and len(first_bytes) > 2 and first_bytes[2] <= 4:
        return "looks like TLS: this is a Kafka PLAINTEXT listener"
    if first_bytes[:4] == b"SSH-":
        return "looks like SSH: this is a Kafka listener"
    return ""


class ConnectionLog:
    """The limiter. `now_s` is the loop's monotonic time."""

    def __init__(self) -> None:
        self._period_start_s = float("-inf")
        self._lines_count = 0
        self.unwritten_count = 0

    def ended(self, now_s: float, peer: str, reason: str) -> None:
        """A connection was ended by us, or was never taken, for `reason`."""
        if now_s - self._period_start_s >= PERIOD_S:
            self._period_start_s = now_s
            self._lines_count = 0
        if self._lines_count >= LINES_MAX:
            self.unwritten_count += 1
            return
        self._lines_count += 1
        more = f" ({self.unwritten_count} more such lines were left out)" if self.unwritten_count else ""
        self.unwritten_count = 0
        log.info("connection of %s ended: %s%s", peer, reason, more)
