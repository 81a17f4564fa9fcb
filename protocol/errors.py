"""The protocol's two errors.

WireError    the peer's bytes are malformed: close the connection
KafkaError   a refusal with a Kafka error code: it goes into the response
"""

from __future__ import annotations


class WireError(Exception):
    """Malformed bytes: truncated, over-long, out of bounds, or of an unknown shape."""


class KafkaError(Exception):
    """A refusal. `code` is an error code of `protocol.error_codes`; `message` is for people, may be empty."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
